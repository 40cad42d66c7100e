"""The pages for those who write a backend: complete, linked, and the first one works; it ends with the NumPy example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.environment import Environment
from tests.kit.pages import AHEAD, PAGE, ROOT, blocks, follow

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("page", "languages"), [(PAGE, {"sh", "python", "toml", "text"}), (AHEAD, {"sh", "python", "text", "mermaid"})]
)
def test_all_blocks_are_found(page: Path, languages: set[str]) -> None:
    """Nothing on a page is in a language that this test does not run, or in a block that it does not see."""
    assert page.read_text().count("\n```") == 2 * len(blocks(page))
    assert {block.language for block in blocks(page)} == languages


@pytest.mark.timeout(900)  # whole runs of the suite, on a machine that may be busy
def test_the_first_page_works(tmp_path: Path) -> None:
    """Commands are run and files written as the page says, one after the other; what it shows as output is printed."""
    follow(PAGE, tmp_path, Environment.make(tmp_path / "home"))
    example = (ROOT / "examples/backend-numpy/tgi_backend_numpy/device.py").read_text()
    written = (tmp_path / "acme/tgi_backend_acme/device.py").read_text()
    assert [line for line in written.splitlines() if line] == [line for line in example.splitlines() if line]


def test_links_lead_somewhere() -> None:
    """Files that the page and the page on versions name are there."""
    for page in (PAGE, AHEAD, PAGE.with_name("contract-versions.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / link).exists(), link
