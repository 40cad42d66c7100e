"""Figures of repeated measurements: the middle, and how far apart they were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Figure:
    """Median, least and greatest of some measurements."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{number(self.middle)} ({number(self.low)}–{number(self.high)})"


def figure(rows: Rows, name: str) -> Figure:
    """Of one column. Raises ValueError where there is nothing."""
    values = [float(row[name]) for row in rows]
    if not values:
        raise ValueError(f"no measurements of {name}")
    return Figure(median(values), min(values), max(values))


def number(value: float) -> str:
    """Three digits, or all before the point."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def ratio(rows: Rows, name: str, ours: Rows) -> float:
    """How many times another's figure ours is: the median over the rounds, as both were measured in turns."""
    theirs = {row["round"]: float(row[name]) for row in rows}
    shares = [float(row[name]) / theirs[row["round"]] for row in ours if row["round"] in theirs]
    if not shares:
        raise ValueError(f"no round in common for {name}")
    return median(shares)


def chosen(rows: Rows, **wanted: object) -> list[Mapping[str, Any]]:
    """Rows with these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def values(rows: Rows, name: str) -> list[Any]:
    """What a column holds, each once, in the order of appearance."""
    return list(dict.fromkeys(row[name] for row in rows))
