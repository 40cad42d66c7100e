"""Bucket sizes that lengths are padded to."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence


def ladder(least: int, most: int, waste: float) -> tuple[int, ...]:
    """Sizes from `least` to `most`, so that lengths spread evenly between two of them are padded by `waste` (below 0.5) on average."""
    sizes = [least]
    while sizes[-1] < most:
        grown = math.floor((sizes[-1] + 1) / (1 - 2 * waste))
        sizes.append(min(most, max(sizes[-1] + 1, grown)))
    return tuple(sizes)


def doublings(least: int, most: int) -> tuple[int, ...]:
    """`least`, twice that, and so on; `most` is the last."""
    sizes = []
    while least < most:
        sizes.append(least)
        least *= 2
    return (*sizes, most)


def fitting(sizes: Sequence[int], length: int) -> int | None:
    """The smallest of ascending sizes that holds a length; None if none does."""
    place = bisect_left(sizes, length)
    return sizes[place] if place < len(sizes) else None
