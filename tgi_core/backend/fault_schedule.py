"""Fault injection schedules, for example `oom:p=0.01,seed=3;nan:every=50,row=last`.

Rules are separated by semicolons. A rule is a kind, a colon and comma-separated `key=value` pairs, at least one of which selects
steps: `p` (probability per step), `at` (step numbers joined by +) or `every`. Steps are numbered from 1 in call order, rejected
calls included. Random choices depend only on seed and step number, so the same calls get the same faults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from tgi_core.backend.sampling import uniform
from tgi_core.backend.types import RowFaultKind


class When(Enum):
    """When a fault that ends a whole step takes effect."""

    VERB = "verb"
    """The verb raises and changes nothing."""
    ROWS = "rows"
    """The verb succeeds; reading the step raises and ends everything derived from it."""
    LATE = "late"
    """Like ROWS, but everything derived from the step ends immediately, before the error is read."""


STEP_KINDS = {
    "oom": "OutOfMemory",
    "capacity": "CapacityExceeded",
    "compile": "CompileFailed",
    "invalid": "InvalidRequest that names no request",
    "busy": "DeviceBusy, which ends the session",
    "lost": "DeviceLost, which ends the session",
    "crash": "an unexpected exception, which ends the session",
    "none": "None instead of a result, which ends the session",
}
ROW_KINDS = {kind.value: kind for kind in RowFaultKind} | {"token": None}
"""`token` returns a token id outside the vocabulary."""
ROWS = ("any", "first", "last")
SLOW = "slow"
KINDS = (*STEP_KINDS, *ROW_KINDS, SLOW)


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of fault and the steps it applies to. `row` applies to row faults, `ms` to slow steps."""

    kind: str
    p: float = 0.0
    at: tuple[int, ...] = ()
    every: int = 0
    seed: int = 0
    when: When = When.VERB
    row: str = "any"
    ms: float = 100.0

    def hits(self, step: int) -> bool:
        """Whether the rule applies to this step."""
        return (
            step in self.at or bool(self.every and step % self.every == 0) or bool(self.p and uniform(self.seed, step) < self.p)
        )

    def victim(self, step: int, rows: int) -> int:
        """Index of the affected row among `rows` rows."""
        return {"first": 0, "last": rows - 1}.get(self.row, int(uniform(~self.seed, step) * rows))


def parse_schedule(text: str) -> tuple[Rule, ...]:
    """Parse rules from text. Raises ValueError that names the invalid rule and the valid choices."""
    rules = tuple(_rule(part.strip(), index) for index, part in enumerate(text.split(";")) if part.strip())
    if not rules:
        raise ValueError("no rules; for example oom:p=0.01,seed=3")
    return rules


def _rule(text: str, index: int) -> Rule:
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not a kind of fault; choose from {', '.join(KINDS)}")
    values: dict[str, object] = {"seed": index}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, _, value = item.partition("=")
        if key not in _READ or (key, kind in STEP_KINDS) in (("when", False), ("row", True)) or (key == "ms" and kind != SLOW):
            raise ValueError(f"{text}: {kind} has no {key!r}; it has {', '.join(_keys(kind))}")
        try:
            values[key] = _READ[key](value)
        except ValueError as error:
            raise ValueError(f"{text}: {key}={value}: {error}") from None
    if not {"p", "at", "every"} & values.keys():
        raise ValueError(f"{text}: say when, with p=, at= or every=")
    return Rule(kind, **values)  # type: ignore[arg-type]  # the parsers in _READ return the fields' types


def _keys(kind: str) -> list[str]:
    own = "when" if kind in STEP_KINDS else "row" if kind in ROW_KINDS else "ms"
    return ["p", "at", "every", "seed", own]


def _probability(text: str) -> float:
    return _bounded(float(text), "from 0 to 1", lambda value: 0 <= value <= 1)


def _milliseconds(text: str) -> float:
    return _bounded(float(text), "at least 0", lambda value: 0 <= value < float("inf"))


def _positive(text: str) -> int:
    return int(_bounded(int(text), "a whole number from 1", lambda value: value >= 1))


def _steps(text: str) -> tuple[int, ...]:
    return tuple(map(_positive, text.split("+")))


def _moment(text: str) -> When:
    try:
        return When(text)
    except ValueError:
        raise ValueError(f"choose from {', '.join(item.value for item in When)}") from None


def _row(text: str) -> str:
    if text not in ROWS:
        raise ValueError(f"choose from {', '.join(ROWS)}")
    return text


def _bounded(value: float, range: str, fits: Callable[[float], bool]) -> float:
    if not fits(value):
        raise ValueError(f"must be {range}")
    return value


_READ: dict[str, Callable[[str], object]] = {
    "p": _probability,
    "at": _steps,
    "every": _positive,
    "seed": int,
    "when": _moment,
    "row": _row,
    "ms": _milliseconds,
}
