"""Comparison of two results of `tgi bench`: figure by figure, with the ratio and which of them is better."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tgi_core.benchmark.latencies import METRICS, distribution
from tgi_core.benchmark.result import BATCH_COLUMNS, Result, Table, middle, number, sizes, values
from tgi_core.errors import StartupError

_COMPARED = ("mean", "p50", "p90", "p99")
_DRAWS, _MOST = 200, 1000
"""Of the bootstrap: draws, and requests of each."""


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of both results. `within_noise`: rounds of one overlap with those of the other, or chance alone explains the difference."""

    name: str
    first: float
    second: float
    more_is_better: bool
    within_noise: bool = False

    @property
    def ratio(self) -> float | None:
        """The second divided by the first; None if the first is 0."""
        return self.second / self.first if self.first else None

    @property
    def loss(self) -> float:
        """How much worse the second is, as a share of the first; negative if it is better."""
        worse = self.first - self.second if self.more_is_better else self.second - self.first
        return worse / self.first if self.first else math.copysign(math.inf, worse) if worse else 0.0

    @property
    def verdict(self) -> str:
        """What the change means, in a word or two."""
        if self.within_noise:
            return "within noise"
        return "same" if abs(self.loss) < 0.005 else "worse" if self.loss > 0 else "better"

    def row(self) -> dict[str, Any]:
        """For JSON."""
        return {"name": self.name, "a": self.first, "b": self.second, "ratio": self.ratio, "verdict": self.verdict}


def changes(first: Result, second: Result) -> list[Change]:
    """Figures that both results have. Raises StartupError for two kinds."""
    if first["kind"] != second["kind"]:
        raise StartupError(f"a {first['kind']} result cannot be compared with a {second['kind']} result")
    found = list(_of_loads(first, second) if first["kind"] == "load" else _of_batches(first["rows"], second["rows"]))
    if not found:
        raise StartupError("the results have no figure in common")
    return found


def _of_loads(first: Result, second: Result) -> Iterator[Change]:
    one, other = first["load"], second["load"]
    for name in ("requests_per_s", "tokens_per_s", "prompt_tokens_per_s"):
        yield Change(name.replace("_per_s", "/s").replace("_", " "), one[name], other[name], True)
    if "goodput" in one and "goodput" in other and one["goodput"]["objectives_ms"] == other["goodput"]["objectives_ms"]:
        yield Change("goodput, requests/s", one["goodput"]["requests_per_s"], other["goodput"]["requests_per_s"], True)
    for name in METRICS:
        if name in one and name in other:
            noise = _noise(first, second, name)
            for column in _COMPARED:
                yield Change(f"{name} {column}, ms", one[name][column], other[name][column], False, noise[column])


def _noise(first: Result, second: Result, name: str) -> dict[str, bool]:
    """By column, whether the difference of a latency is within what chance makes of as many requests: the 95 % interval of the bootstrap
    contains 0. False where requests have no such value."""
    chance = random.Random(0)
    samples = [[row[name] for row in result.get("requests", ()) if row.get(name) is not None] for result in (first, second)]
    if min(map(len, samples)) < 2:
        return dict.fromkeys(_COMPARED, False)
    samples = [sample if len(sample) <= _MOST else chance.sample(sample, _MOST) for sample in samples]
    drawn = [[_columns(chance.choices(sample, k=len(sample))) for _ in range(_DRAWS)] for sample in samples]
    found = {}
    for column in _COMPARED:
        gaps = sorted(one[column] - other[column] for one, other in zip(*drawn, strict=True))
        found[column] = gaps[_DRAWS // 40] <= 0 <= gaps[-1 - _DRAWS // 40]
    return found


def _columns(values: list[float]) -> dict[str, float]:
    found = distribution(values)
    return {column: found[column] for column in _COMPARED}


def _of_batches(first: Any, second: Any) -> Iterator[Change]:
    for size in (size for size in sizes(first) if size in sizes(second)):
        for column in BATCH_COLUMNS:
            ours, theirs = values(first, size, column), values(second, size, column)
            several = len(ours) > 1 and len(theirs) > 1
            noise = several and min(ours) <= max(theirs) and min(theirs) <= max(ours)
            more = column in ("prefill", "decode", "rate")
            yield Change(
                f"batch {size}: {_names(column)}", middle(first, size, column), middle(second, size, column), more, noise
            )


def _names(column: str) -> str:
    return {"first_p99_ms": "first token p99, ms", "gap_p99_ms": "next token p99, ms"}.get(column, BATCH_COLUMNS[column])


def differences(first: Result, second: Result) -> list[str]:
    """What else differs between the runs, so that a change of speed may have another cause."""
    found = [f"{name}: {first[name]} and {second[name]}" for name in ("api", "model") if first.get(name) != second.get(name)]
    clients = [f"{each['client']['platform']}, {each['client']['cores']} cores" for each in (first, second)]
    found += [] if len(set(clients)) == 1 else [f"client: {clients[0]} and {clients[1]}"]
    one, other = first["options"], second["options"]
    found += [
        f"{key}: {one.get(key)} and {other.get(key)}"
        for key in sorted(one.keys() | other.keys())
        if one.get(key) != other.get(key)
    ]
    return found


def table(found: list[Change]) -> Table:
    """The comparison."""
    rows = [(change.name, number(change.first), number(change.second), _ratio(change), change.verdict) for change in found]
    return Table("comparison", ("figure", "A", "B", "B ÷ A", "B is"), rows)


def _ratio(change: Change) -> str:
    return "-" if change.ratio is None else f"{change.ratio:.3f}"
