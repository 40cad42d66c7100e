"""Verdicts, and what stops a clause from being judged."""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    """What came of one clause."""

    PASS = "pass"
    FAIL = "fail"
    KNOWN = "known"
    """It fails, as conformance.toml says that it will, until a date."""
    UNSUPPORTED = "unsupported"
    """Its feature is not declared, and asking for the feature was refused as it must be."""
    INCONCLUSIVE = "inconclusive"
    """The situation that the clause is about was never reached."""
    ERROR = "error"
    """The suite itself is at fault."""
    NOT_RUN = "not run"


class Level(Enum):
    """How deep a clause looks. L4 is measured and reported, never passed or failed."""

    L0 = "L0"
    L1 = "L1"
    L2 = "L2"
    L3 = "L3"
    L4 = "L4"

    @property
    def title(self) -> str:
        """What the level is about, in one word."""
        return {"L0": "package", "L1": "protocol", "L2": "semantics", "L3": "resilience", "L4": "performance"}[self.value]


GRANTED = (Level.L0, Level.L1, Level.L2, Level.L3)
"""Levels that can be granted, each on top of those before it."""

BLOCKING = frozenset({Verdict.FAIL, Verdict.ERROR, Verdict.INCONCLUSIVE, Verdict.NOT_RUN})
"""Verdicts with which no level is granted. A clause of an undeclared feature is UNSUPPORTED, so what is NOT RUN is claimed."""


class Violation(AssertionError):
    """The backend broke a law. `law` names the rule within the oracle, for telling one failure from another."""

    def __init__(self, law: str, message: str) -> None:
        super().__init__(message)
        self.law = law


class NotReached(Exception):
    """The situation that a clause is about cannot be brought about on this backend."""


class DoesNotApply(Exception):
    """No call can break the law of a clause, within the limits that this backend promised."""


class SuiteFault(Exception):
    """A scenario and the oracle disagree: a mistake in the suite, not in the backend."""
