"""Statistics of repeated measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from tgi_core.benchmark.result import number

Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Figure:
    """Median, minimum and maximum of measurements."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{number(self.middle)} ({number(self.low)}–{number(self.high)})"


def figure(rows: Rows, name: str) -> Figure:
    """Compute the statistics of one column. Raises ValueError if it is empty."""
    values = [float(row[name]) for row in rows]
    if not values:
        raise ValueError(f"no measurements of {name}")
    return Figure(median(values), min(values), max(values))


def ratio(rows: Rows, name: str, ours: Rows) -> float:
    """Ratio of our figure to another's: the median over rounds, in which both were measured in turns."""
    theirs = {row["round"]: float(row[name]) for row in rows}
    shares = [float(row[name]) / theirs[row["round"]] for row in ours if row["round"] in theirs]
    if not shares:
        raise ValueError(f"no round in common for {name}")
    return median(shares)


def chosen(rows: Rows, **wanted: object) -> list[Mapping[str, Any]]:
    """Rows with these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def values(rows: Rows, name: str) -> list[Any]:
    """Distinct values of a column, in order of appearance."""
    return list(dict.fromkeys(row[name] for row in rows))
