"""The short form of `tests.soak.late`."""

from __future__ import annotations

from tests.soak.late import tried


def test_late_faults() -> None:
    """Steps that fail when they are read, shards that are lost with them: no answer differs, and the server is ready afterwards."""
    seen, wrong = tried("reference", 12, seed=1)
    assert not wrong and seen.answers > 0
