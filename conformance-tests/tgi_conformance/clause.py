"""What a clause is: one law of the contract, as a value, with the scenario that tries it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tgi_conformance.verdict import Level

if TYPE_CHECKING:
    from tgi_conformance.scene import Scene

Check = Callable[["Scene"], None]
"""Tries a law. Raises Violation where it is broken, NotReached where it could not be tried."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One law. `id` is part of the suite's surface and is never renamed.

    `needs` names the features (see `features.py`) without which the clause does not apply, and `rows` how many must live at the same
    time; `situations` must each have been reached at least once, or nothing was proved. A provisional clause is run and reported, and
    blocks no level. After an essential one has failed the rest is not worth running.
    """

    id: str
    sentence: str
    level: Level
    check: Check
    needs: tuple[str, ...] = ()
    situations: tuple[str, ...] = ()
    provisional: bool = False
    essential: bool = False
    rows: int = 1

    @property
    def topic(self) -> str:
        """The part of the id before the point."""
        return self.id.partition(".")[0]


_ALL: dict[str, Clause] = {}


def clause(
    id: str,
    sentence: str,
    level: Level,
    *,
    needs: tuple[str, ...] = (),
    situations: tuple[str, ...] = (),
    provisional: bool = False,
    essential: bool = False,
    rows: int = 1,
) -> Callable[[Check], Check]:
    """Register a scenario as the clause `id`."""

    def register(check: Check) -> Check:
        if id in _ALL:
            raise ValueError(f"two clauses are called {id}")
        _ALL[id] = Clause(id, sentence, level, check, needs, situations, provisional, essential, rows)
        return check

    return register


def registered() -> tuple[Clause, ...]:
    """All clauses, in the order of their definition."""
    return tuple(_ALL.values())
