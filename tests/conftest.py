"""Fixtures that several folders of tests share."""

from __future__ import annotations

import gc

import pytest

from tgi_core.model_files import DEMO
from tgi_core.tokenizer import Tokenizer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start what takes longest first: begun last, it would keep one worker busy while the others have nothing left to do."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    """Exclude what is there once all tests are collected from garbage collection: 900,000 objects, with which each takes a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def demo_tokenizer() -> Tokenizer:
    """The tokenizer of the bundled model."""
    return Tokenizer.load(DEMO)
