"""How fast something grows, whatever single measurements say."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import median


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Theil-Sen: the median of the slopes between all pairs of (x, y); outliers do not move it."""
    return median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(samples, 2) if x1 != x2)
