"""Soak A in its short form."""

from __future__ import annotations

import pytest

from tests.soak.scheduler import BYTES_PER_REQUEST, ONE_SHARD, soak
from tests.soak.slope import slope

pytestmark = pytest.mark.long


@pytest.mark.parametrize("seed", [1, 2])
def test_a_day_in_small(seed: int) -> None:
    """Every fault, cancels and preemption: what must hold holds after each turn, everyone ends, and nothing is kept of anybody."""
    report = soak(1_000, seed)
    assert report.completed > 500 and min(report.failed, report.cancelled, report.restarts) > 10 and report.preempted, report
    report = soak(2_000, seed, rules=ONE_SHARD)
    assert report.completed > 1_500 and report.restarts == 0
    assert report.bytes_per_request <= BYTES_PER_REQUEST, report.sizes


@pytest.mark.parametrize(("traced", "requests"), [(False, 600), (True, 300)])
def test_a_planted_leak_is_found(traced: bool, requests: int) -> None:
    """Sixteen bytes kept of each request are seen; a thousand where all memory is traced, without which nothing shows."""
    planted = 1000 if traced else 16
    assert soak(requests, 1, leak=planted, traced=traced, rules=ONE_SHARD).bytes_per_request > 10 * BYTES_PER_REQUEST


def test_the_slope_is_robust() -> None:
    """A third of the samples may be anything."""
    line = [(float(x), 2.0 * x + 5) for x in range(30)]
    assert slope(line) == 2
    assert abs(slope([(x, 1e9 if place % 3 == 0 else y) for place, (x, y) in enumerate(line)]) - 2) < 1e8
    assert slope([(x, 1e9 if place % 5 == 0 else y) for place, (x, y) in enumerate(line)]) == pytest.approx(2)
