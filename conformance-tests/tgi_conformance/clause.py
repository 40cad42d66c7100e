"""A clause: one law of the contract as a value, with the scenario that tests it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tgi_conformance.verdict import Level
from tgi_core.backend import API_VERSION

if TYPE_CHECKING:
    from tgi_conformance.scenario import Scene

Check = Callable[["Scene"], None]
"""Tests a law. Raises Violation if it is broken, NotReached if it could not be tested."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One law. `id` is public and is never renamed.

    `needs` names the features (see `features.py`) without which the clause does not apply, and `rows` how many rows must be alive
    at once. A run proves something only if it reaches each of `situations`. `since` is the contract's version in which the clause was
    added. If an essential clause fails, the rest is not worth running.
    """

    id: str
    sentence: str
    level: Level
    check: Check
    needs: tuple[str, ...] = ()
    situations: tuple[str, ...] = ()
    since: tuple[int, int] = (1, 0)
    essential: bool = False
    rows: int = 1

    @property
    def provisional(self) -> bool:
        """Whether it is new in this version of the contract: it is run and reported, but blocks no level."""
        return self.since == API_VERSION != (1, 0)

    @property
    def topic(self) -> str:
        """The part of the id before the dot."""
        return self.id.partition(".")[0]


_ALL: dict[str, Clause] = {}


def clause(
    id: str,
    sentence: str,
    level: Level,
    *,
    needs: tuple[str, ...] = (),
    situations: tuple[str, ...] = (),
    since: tuple[int, int] = (1, 0),
    essential: bool = False,
    rows: int = 1,
) -> Callable[[Check], Check]:
    """Register a scenario as the clause `id`."""

    def register(check: Check) -> Check:
        if id in _ALL:
            raise ValueError(f"two clauses have the id {id}")
        _ALL[id] = Clause(id, sentence, level, check, needs, situations, since, essential, rows)
        return check

    return register


def registered() -> tuple[Clause, ...]:
    """Return all clauses in the order of their definition."""
    return tuple(_ALL.values())
