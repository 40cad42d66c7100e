"""The contract over Triton's kernels, in its interpreter."""

from __future__ import annotations

import pytest

from tests.triton.interpreting import run_interpreted


@pytest.mark.timeout(3600)
def test_interpreted() -> None:
    """The clauses that `interpreted_conformance.py` chooses are kept."""
    run_interpreted("interpreted_conformance.py")
