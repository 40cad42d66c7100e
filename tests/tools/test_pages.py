"""The pages about the tools are true: every command in them works as written."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.kit.pages import ROOT, blocks
from tests.serve.process import TGI, ServerProcess, environment, served

FILES = {"bench": {"a.json", "b.json", "b.html", "both.svg", "requests.jsonl"}, "check": {"plan.json"}, "chat": set[str]()}
"""What the commands of a page write."""


@pytest.fixture(scope="module")
def server() -> Generator[ServerProcess, None, None]:
    """A server with the demo model."""
    with served("--backend", "cpu", "--max-total-tokens", "512") as running:
        yield running


@pytest.mark.parametrize("page", FILES)
def test_every_command_works(server: ServerProcess, page: str, tmp_path: Path) -> None:
    """Commands are run in order in an empty folder, against a server at the address that the page names."""
    found = [block for block in blocks(ROOT / f"docs/{page}.md") if block.language == "sh"]
    assert len(found) >= 2
    path = {"PATH": os.pathsep.join([str(Path(TGI[0]).parent), os.environ["PATH"]])}
    for block in found:
        text = block.text.replace("http://127.0.0.1:3000", server.url)
        done = subprocess.run(
            ["bash", "-euc", text], cwd=tmp_path, capture_output=True, text=True, env=environment(path), timeout=300, check=False
        )
        assert done.returncode == 0, block.text + done.stdout + done.stderr
        assert done.stdout.strip() or any(tmp_path.iterdir())
    made = {path.name for path in tmp_path.iterdir()}
    assert made == FILES[page]


def test_help_names_every_option_of_the_pages() -> None:
    """Flags that a page names in backticks exist."""
    text = "".join(
        subprocess.run(
            [*TGI, *command, "--help"], capture_output=True, text=True, env=environment({"COLUMNS": "200"}), check=True
        ).stdout
        for command in (["bench", "batch"], ["bench", "load"], ["bench", "compare"], ["check"], ["chat"])
    )
    named = {
        word
        for page in FILES
        for word in (ROOT / f"docs/{page}.md").read_text().replace("`", " ").split()
        if word.startswith("--")
    }
    flags = {word.strip(".,;:)") for word in named if len(word) > 3}
    assert flags and not {flag for flag in flags if flag not in text}
