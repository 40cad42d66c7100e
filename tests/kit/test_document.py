"""The pages for those who write a backend: every block on them is run, in its order; the first ends with the NumPy example."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit.environment import Environment

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/writing-a-backend.md"
AHEAD = ROOT / "docs/run-ahead-without-torch.md"
_FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: what it is written in, the file that it is a part of, and its text."""

    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Of a page, in order."""
    return [Block(*found.groups()) for found in _FENCE.finditer(page.read_text())]


@pytest.mark.parametrize(
    ("page", "languages"), [(PAGE, {"sh", "python", "toml", "text"}), (AHEAD, {"sh", "python", "text", "mermaid"})]
)
def test_all_blocks_are_found(page: Path, languages: set[str]) -> None:
    """Nothing on a page is in a language that this test does not run, or in a block that it does not see."""
    assert page.read_text().count("\n```") == 2 * len(blocks(page))
    assert {block.language for block in blocks(page)} == languages


def test_the_pages_work(tmp_path: Path) -> None:
    """Commands are run and files written as the pages say, one after the other; what they show as output is printed."""
    environment = Environment.make(tmp_path / "home")
    folder = tmp_path / "work"
    folder.mkdir()
    follow(PAGE, folder, environment)
    example = (ROOT / "examples/backend-numpy/tgi_backend_numpy/device.py").read_text()
    written = (folder / "acme/tgi_backend_acme/device.py").read_text()
    assert [line for line in written.splitlines() if line] == [line for line in example.splitlines() if line]
    follow(AHEAD, folder, environment)


def follow(page: Path, folder: Path, environment: Environment) -> None:
    """Do what a page says."""
    started, output = set[str](), ""
    for block in blocks(page):
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
            done = environment.run(*shell, block.text, cwd=folder)
            assert done.returncode == 0, block.text + done.stdout + done.stderr
            output += done.stdout


def test_links_lead_somewhere() -> None:
    """Files that the page and the page on versions name are there."""
    for page in (PAGE, AHEAD, PAGE.with_name("contract-versions.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / link).exists(), link
