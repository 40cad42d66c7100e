"""What the outcomes prove, and where they do not. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tgi_conformance.proof.trials import Outcome
from tgi_conformance.verdict import Verdict

_KILLED = Verdict.FAIL.value
_CLEAN = (Verdict.PASS.value, Verdict.UNSUPPORTED.value)


@dataclass(frozen=True, slots=True)
class Kills:
    """How many of the tried seeds made a clause fail a mutant."""

    killed: int
    tried: int
    meant: bool

    @property
    def sure(self) -> bool:
        """Whether all of them did."""
        return self.killed == self.tried


@dataclass(frozen=True, slots=True)
class Matrix:
    """`cells` are keyed by (mutant, clause). `survivors`, `idle` clauses and `alarms` must be empty; their lines are readable."""

    mutants: tuple[str, ...]
    twins: tuple[str, ...]
    clauses: tuple[str, ...]
    cells: Mapping[tuple[str, str], Kills]
    survivors: tuple[str, ...]
    idle: tuple[str, ...]
    alarms: tuple[str, ...]

    @property
    def proved(self) -> bool:
        """Whether every clause fails every mutant meant for it on every seed, each has such a mutant, and no twin fails."""
        return not (self.survivors or self.idle or self.alarms)

    def killed_by(self, clause: str) -> dict[str, Kills]:
        """Return the mutants that a clause is meant for."""
        found = ((mutant, self.cells.get((mutant, clause))) for mutant in self.mutants)
        return {mutant: kills for mutant, kills in found if kills is not None and kills.meant}

    def also(self, mutant: str) -> int:
        """Return how many clauses fail a mutant in addition to those meant for it."""
        return sum(1 for (name, _), kills in self.cells.items() if name == mutant and not kills.meant and kills.killed)


def tally(outcomes: Sequence[Outcome], mutants: Iterable[str], twins: Iterable[str], clauses: Iterable[str]) -> Matrix:
    """Build a matrix from outcomes. A clause is idle if it fails none of the mutants meant for it on every seed."""
    mutants, twins, clauses = tuple(mutants), tuple(twins), tuple(clauses)
    grouped: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        grouped[outcome.name, outcome.clause].append(outcome)
    cells = {
        place: Kills(sum(item.verdict == _KILLED for item in items), len(items), items[0].meant)
        for place, items in grouped.items()
        if place[0] in mutants
    }
    survivors = [
        f"{name} by {clause}, seed {item.seed}: {item.verdict}{': ' if item.message else ''}{item.message}"
        for (name, clause), items in sorted(grouped.items())
        for item in items
        if name in mutants and item.meant and item.verdict != _KILLED
    ]
    alarms = [
        f"{name} by {clause}, seed {item.seed}: {item.verdict}: {item.message}"
        for (name, clause), items in sorted(grouped.items())
        for item in items
        if name in twins and item.verdict not in _CLEAN
    ]
    useful = {clause for (_, clause), kills in cells.items() if kills.meant and kills.sure}
    idle = [clause for clause in clauses if clause not in useful]
    return Matrix(mutants, twins, clauses, cells, tuple(survivors), tuple(idle), tuple(alarms))
