"""Fixtures of the tests of pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.surface.browsing import SECONDS, chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    expect.set_options(timeout=1000 * SECONDS)
    with chromium() as found:
        yield found
