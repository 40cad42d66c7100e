"""Models with latent attention, in Triton's interpreter."""

from __future__ import annotations

import pytest

from tests.triton.interpreting import run_interpreted

pytestmark = pytest.mark.long


@pytest.mark.timeout(900)
def test_interpreted() -> None:
    """Every claim of `interpreted_latent.py` holds in Triton's interpreter."""
    run_interpreted("interpreted_latent.py")
