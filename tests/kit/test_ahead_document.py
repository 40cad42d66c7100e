"""The page on running ahead without torch works, on the package of the page before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.environment import Environment
from tests.kit.pages import AHEAD, PAGE, do, follow, package

pytestmark = pytest.mark.long


@pytest.mark.timeout(900)  # whole runs of the suite, on a machine that may be busy
def test_the_second_page_works(tmp_path: Path) -> None:
    """Its commands are run and its files written over the first page's package, which that page's own test has judged."""
    environment = Environment.make(tmp_path / "home")
    do(package(PAGE), tmp_path, environment)
    follow(AHEAD, tmp_path, environment)
