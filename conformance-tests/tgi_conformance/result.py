"""What came of one clause, as a value that goes between processes and into reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tgi_conformance.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Result:
    """One clause's outcome: the shortest `sequence` that shows a failure, the lines of its file, and what was measured."""

    clause: str
    verdict: Verdict
    message: str = ""
    seconds: float = 0.0
    situations: dict[str, int] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    sequence: tuple[str, ...] = ()
    failure: tuple[dict[str, Any], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For a pipe or a report."""
        return asdict(self) | {"verdict": self.verdict.value}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Result:
        """The inverse. Raises KeyError, TypeError, ValueError."""
        fields = dict(value) | {
            "verdict": Verdict(value["verdict"]),
            "sequence": tuple(value["sequence"]),
            "failure": tuple(value["failure"]),
        }
        return cls(**fields)

    def become(self, verdict: Verdict, message: str) -> Result:
        """The same with another verdict."""
        return replace(self, verdict=verdict, message=message)


def not_run(clause: str, why: str) -> Result:
    """A clause that was not tried."""
    return Result(clause, Verdict.NOT_RUN, why)
