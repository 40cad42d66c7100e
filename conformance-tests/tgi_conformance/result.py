"""A clause's outcome, as a value that can cross process boundaries and go into reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tgi_conformance.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Result:
    """One clause's outcome: the shortest `sequence` that shows a failure, its recording's lines, and what was measured."""

    clause: str
    verdict: Verdict
    message: str = ""
    seconds: float = 0.0
    situations: dict[str, int] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    sequence: tuple[str, ...] = ()
    failure: tuple[dict[str, Any], ...] = ()
    timed_out: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return asdict(self) | {"verdict": self.verdict.value}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Result:
        """Restore what `as_json` returned. Raises KeyError, TypeError, ValueError."""
        fields = dict(value) | {
            "verdict": Verdict(value["verdict"]),
            "sequence": tuple(value["sequence"]),
            "failure": tuple(value["failure"]),
        }
        return cls(**fields)

    def become(self, verdict: Verdict, message: str) -> Result:
        """Return the same result with another verdict and message."""
        return replace(self, verdict=verdict, message=message)


def not_run(clause: str, why: str) -> Result:
    """Return the result of a clause that was not run."""
    return Result(clause, Verdict.NOT_RUN, why)
