"""The pages for those who write a backend, as what a reader does: commands to run and files to write, block by block."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.kit.environment import Environment
from tests.serve.process import free_port

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/writing-a-backend.md"
AHEAD = ROOT / "docs/run-ahead-without-torch.md"
_PORT = "3000"
"""The port on the pages, which may be in use here: the test replaces it with a free one, and nothing else."""
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


def package(page: Path) -> list[Block]:
    """Those blocks of a page that write its package or install it, without the commands that only look at it."""
    files = [block for block in blocks(page) if block.title or block.language == "sh"]
    return [block if block.title else replace(block, text=_writing(block.text)) for block in files]


def _writing(commands: str) -> str:
    return "\n".join(line for line in commands.splitlines() if line.startswith(_WRITING))


def follow(page: Path, folder: Path, environment: Environment) -> None:
    """Do what a page says."""
    do(blocks(page), folder, environment)


def do(chosen: Iterable[Block], folder: Path, environment: Environment) -> None:
    """Files are written, commands run, and what is shown must have been printed."""
    started, output = set[str](), ""
    for block in chosen:
        if block.title:
            with (folder / block.title).open("a" if block.title in started else "w") as file:
                file.write(("\n" if block.title in started else "") + block.text)
            started.add(block.title)
        elif block.language == "mermaid":
            continue
        elif block.language == "text":
            assert set(block.text.splitlines()) <= set(output.splitlines())
        else:
            shell = ("bash", "-euc") if block.language == "sh" else ("python", "-c")
            done = environment.run(*shell, block.text.replace(_PORT, str(free_port())), cwd=folder, timeout=600)
            assert done.returncode == 0, block.text + done.stdout + done.stderr
            output += done.stdout
