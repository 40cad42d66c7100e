"""docs/writing-a-backend.md: every block on the page is run, in its order, and what comes of it is the NumPy example."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.kit.environment import Environment

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/writing-a-backend.md"
_FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: what it is written in, the file that it is a part of, and its text."""

    language: str
    title: str
    text: str


def blocks() -> list[Block]:
    """Of the page, in order."""
    return [Block(*found.groups()) for found in _FENCE.finditer(PAGE.read_text())]


def test_all_blocks_are_found() -> None:
    """Nothing on the page is in a language that this test does not run, or in a block that it does not see."""
    assert PAGE.read_text().count("\n```") == 2 * len(blocks())
    assert {block.language for block in blocks()} == {"sh", "python", "toml", "text"}


def test_the_page_works(tmp_path: Path) -> None:
    """Commands are run and files written as the page says; what it shows as output is printed."""
    environment = Environment.make(tmp_path / "home")
    folder, started, output = tmp_path / "work", set[str](), ""
    folder.mkdir()
    for block in blocks():
        if block.title:
            with (folder / block.title).open("a" if block.title in started else "w") as file:
                file.write(("\n" if block.title in started else "") + block.text)
            started.add(block.title)
        elif block.language == "text":
            assert set(block.text.splitlines()) <= set(output.splitlines())
        else:
            shell = ("bash", "-euc") if block.language == "sh" else ("python", "-c")
            done = environment.run(*shell, block.text, cwd=folder)
            assert done.returncode == 0, block.text + done.stdout + done.stderr
            output += done.stdout
    example = (ROOT / "examples/backend-numpy/tgi_backend_numpy/device.py").read_text()
    written = (folder / "acme/tgi_backend_acme/device.py").read_text()
    assert [line for line in written.splitlines() if line] == [line for line in example.splitlines() if line]


def test_links_lead_somewhere() -> None:
    """Files that the page and the page on versions name are there."""
    for page in (PAGE, PAGE.with_name("contract-versions.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / link).exists(), link
