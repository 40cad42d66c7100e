"""Sampling from processed logits, in Triton's interpreter."""

from __future__ import annotations

import pytest

from tests.triton.interpreting import run_interpreted

pytestmark = pytest.mark.long


@pytest.mark.timeout(900)
def test_interpreted() -> None:
    """Every claim of `interpreted_processing.py` holds in Triton's interpreter."""
    run_interpreted("interpreted_processing.py")


@pytest.mark.timeout(900)
def test_ahead() -> None:
    """Every claim of `interpreted_ahead.py` holds in Triton's interpreter."""
    run_interpreted("interpreted_ahead.py")
