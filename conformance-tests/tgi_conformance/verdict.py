"""Verdicts, and exceptions that end a clause early."""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    """The outcome of a clause."""

    PASS = "pass"
    FAIL = "fail"
    KNOWN = "known"
    """It fails as conformance.toml expects, until a date."""
    UNSUPPORTED = "unsupported"
    """Its feature is not declared, and a request for it was refused as required."""
    INCONCLUSIVE = "inconclusive"
    """The situation that the clause is about was never reached."""
    ERROR = "error"
    """The suite itself is at fault."""
    NOT_RUN = "not run"


class Level(Enum):
    """How thorough a clause is. L4 is measured and reported, never passed or failed."""

    L0 = "L0"
    L1 = "L1"
    L2 = "L2"
    L3 = "L3"
    L4 = "L4"

    @property
    def title(self) -> str:
        """One word for what the level covers."""
        return {"L0": "package", "L1": "protocol", "L2": "semantics", "L3": "resilience", "L4": "performance"}[self.value]


GRANTED = (Level.L0, Level.L1, Level.L2, Level.L3)
"""Levels that can be granted, each on top of the previous ones."""

BLOCKING = frozenset({Verdict.FAIL, Verdict.ERROR, Verdict.INCONCLUSIVE, Verdict.NOT_RUN})
"""Verdicts that prevent a level from being granted. Undeclared features are UNSUPPORTED, so NOT RUN means declared."""


class Violation(AssertionError):
    """The backend broke a law. `law` names the oracle's rule, to distinguish failures."""

    def __init__(self, law: str, message: str) -> None:
        super().__init__(message)
        self.law = law


class NotReached(Exception):
    """The situation that a clause is about cannot be reached on this backend."""


class DoesNotApply(Exception):
    """No call can break the clause's law within the limits this backend promised."""


class SuiteFault(Exception):
    """A scenario and the oracle disagree: a mistake in the suite, not in the backend."""
