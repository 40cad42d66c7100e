"""Comparison of two results of `tgi bench`: figure by figure, with the ratio and which of them is better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tgi_core.benchmark.latencies import METRICS
from tgi_core.benchmark.result import BATCH_COLUMNS, Result, Table, middle, number, sizes, values
from tgi_core.errors import StartupError

_COMPARED = ("mean", "p50", "p90", "p99")


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of both results. `within_noise`: the rounds of one overlap with those of the other."""

    name: str
    first: float
    second: float
    more_is_better: bool
    within_noise: bool = False

    @property
    def ratio(self) -> float:
        """The second divided by the first."""
        return self.second / self.first if self.first else float("nan")

    @property
    def loss(self) -> float:
        """How much worse the second is, as a share; negative if it is better."""
        return 1 - self.ratio if self.more_is_better else self.ratio - 1

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
    found = list(
        _of_loads(first["load"], second["load"]) if first["kind"] == "load" else _of_batches(first["rows"], second["rows"])
    )
    if not found:
        raise StartupError("the results have no figure in common")
    return found


def _of_loads(first: Result, second: Result) -> Iterator[Change]:
    for name in ("requests_per_s", "tokens_per_s", "prompt_tokens_per_s"):
        yield Change(name.replace("_per_s", "/s").replace("_", " "), first[name], second[name], True)
    if "goodput" in first and "goodput" in second and first["goodput"]["objectives_ms"] == second["goodput"]["objectives_ms"]:
        yield Change("goodput, requests/s", first["goodput"]["requests_per_s"], second["goodput"]["requests_per_s"], True)
    for name in METRICS:
        if name in first and name in second:
            for column in _COMPARED:
                yield Change(f"{name} {column}, ms", first[name][column], second[name][column], False)


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
    rows = [(change.name, number(change.first), number(change.second), f"{change.ratio:.3f}", change.verdict) for change in found]
    return Table("comparison", ("figure", "A", "B", "B ÷ A", "B is"), rows)
