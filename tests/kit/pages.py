"""The pages for those who write a backend, as what a reader does: commands to run and files to write, block by block."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.kit.environment import Environment

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/writing-a-backend.md"
AHEAD = ROOT / "docs/run-ahead-without-torch.md"
_FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_WRITING = ("pip ", "rm ", "sed ", "tgi-conformance new-backend ")
"""How the commands begin that write the package or install it. The others look at it."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: what it is written in, the file that it is a part of, and its text."""

    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Of a page, in order."""
    return [Block(*found.groups()) for found in _FENCE.finditer(page.read_text())]


def follow(page: Path, folder: Path, environment: Environment) -> None:
    """Do what a page says, and compare what it shows as output with what is printed."""
    files, output = set[str](), ""
    for block in blocks(page):
        if block.title:
            write(block, folder, files)
        elif block.language == "text":
            assert set(block.text.splitlines()) <= set(output.splitlines())
        elif block.language != "mermaid":
            output += execute(block.language, block.text, folder, environment)


def write_package(page: Path, folder: Path, environment: Environment) -> None:
    """Write and install the package of a page, without the commands that only look at it."""
    files = set[str]()
    for block in blocks(page):
        if block.title:
            write(block, folder, files)
        elif block.language == "sh":
            commands = [line for line in block.text.splitlines() if line.startswith(_WRITING)]
            execute("sh", "\n".join(commands), folder, environment)


def write(block: Block, folder: Path, files: set[str]) -> None:
    """Begin the block's file, or append to it if it is in `files`, which then has it."""
    with (folder / block.title).open("a" if block.title in files else "w") as file:
        file.write(("\n" if block.title in files else "") + block.text)
    files.add(block.title)


def execute(language: str, text: str, folder: Path, environment: Environment) -> str:
    """Run a block; what it prints. AssertionError unless it succeeds."""
    shell = ("bash", "-euc") if language == "sh" else ("python", "-c")
    done = environment.run(*shell, text, cwd=folder)
    assert done.returncode == 0, text + done.stdout + done.stderr
    return done.stdout
