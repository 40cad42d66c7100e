"""Fixtures for tests of kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import triton

from tests.triton.noting import NotingDriver


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[NotingDriver]:
    """The driver that Triton finds."""
    noting = NotingDriver()
    monkeypatch.setattr(triton.runtime.driver, "_active", noting)
    yield noting
