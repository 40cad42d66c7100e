"""Fixtures that several folders of tests share."""

from __future__ import annotations

import pytest

from tgi_core.cli.collector import settle
from tgi_core.model_files import DEMO
from tgi_core.tokenizer import Tokenizer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start what takes longest first: begun last, it would keep one worker busy while the others have nothing left to do."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(scope="module", autouse=True)
def earlier_objects_left_alone() -> None:
    """Exclude what earlier modules have left from garbage collection. All tests and libraries are a million objects, and loading a
    model collects: that alone would take a second each time."""
    settle()


@pytest.fixture(scope="session")
def demo_tokenizer() -> Tokenizer:
    """The tokenizer of the bundled model."""
    return Tokenizer.load(DEMO)
