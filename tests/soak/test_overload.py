"""Ten times as many requests as can be answered, for a moment."""

from __future__ import annotations

import asyncio

from tests.soak.overload import overload, server


def test_overload() -> None:
    """Every request is answered: in full, or with 429 and the time to come back; probes are never refused."""
    with server() as (port, process):
        report = asyncio.run(overload(port, process, 2.0))
    print(report)
    assert report.lost == 0
    assert {answer.status for answer in report.answers} == {200, 429}
    assert all(b"retry-after: 1" in answer.headers and b"retry-after-ms: 1000" in answer.headers for answer in report.rejected())
    assert all(report.probes.values())
