"""Fixtures that several folders of tests share."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.serve.process import SERVERS
from tgi_core.cli.collector import settle
from tgi_core.model_files import DEMO
from tgi_core.tokenizer import Tokenizer

_LINES = 40


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start what takes longest first: begun last, it would keep one worker busy while the others have nothing left to do."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failed test what the servers have printed that were in use."""
    report = yield
    if report.failed:
        report.sections += [(f"Server {each.child.pid}", "".join(each.lines[-_LINES:])) for each in SERVERS]
    return report


@pytest.fixture(scope="module", autouse=True)
def earlier_objects_left_alone() -> None:
    """Exclude what earlier modules have left from garbage collection. All tests and libraries are a million objects, and loading a
    model collects: that alone would take a second each time."""
    settle()


@pytest.fixture(scope="session")
def demo_tokenizer() -> Tokenizer:
    """The tokenizer of the bundled model."""
    return Tokenizer.load(DEMO)
