"""The page on running ahead without torch works, on the package of the page before it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tgi_conformance.kit.writing import new_backend

from tests.kit.environment import Environment
from tests.kit.pages import AHEAD, PAGE, blocks, do, follow, package

pytestmark = pytest.mark.long


@pytest.mark.timeout(900)  # whole runs of the suite, on a machine that may be busy
def test_the_second_page_works(tmp_path: Path) -> None:
    """Its commands are run and its files written over the first page's package, which that page's own test has judged."""
    environment = Environment.make(tmp_path / "home")
    do(package(PAGE), tmp_path, environment)
    follow(AHEAD, tmp_path, environment)


def test_the_second_page_works_on_the_generated_toy(tmp_path: Path) -> None:
    """Its session, with masks, on the device that `new-backend` writes."""
    environment = Environment.make(tmp_path / "home")
    new_backend("acme", tmp_path / "acme")
    environment.install("--no-deps", "-e", str(tmp_path / "acme"))
    *session, _ = (block for block in blocks(AHEAD) if block.language in ("sh", "python"))
    do(session, tmp_path, environment)
    only = ("--only", "masks", "--only", "order")
    done = environment.run("tgi-conformance", "run", "--backend", "acme", "--level", "L2", *only, cwd=tmp_path)
    assert done.returncode == 0 and "masks.layout" in done.stdout, done.stdout + done.stderr
