"""Run the suite on generated mutants: which are killed, by which clauses, and whether those name the cause."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context

from tgi_conformance.baseline import Alone
from tgi_conformance.clause import Clause
from tgi_conformance.clause_run import run_clause
from tgi_conformance.generated import Generated, drawn
from tgi_conformance.generated.playing import difference
from tgi_conformance.proof.trials import JUDGING, settle
from tgi_conformance.verdict import Level, Verdict

CLAUSES = tuple(clause for clause in JUDGING if clause.level is not Level.L0 and clause.topic != "ranks")
"""The clauses that run, which exclude those about ranks, because generated mutants are sessions of one rank."""

EFFORT = 0.4
"""Effort of clauses that draw at random."""

KILLED, SURVIVED, EQUIVALENT, LATE = "killed", "survived", "equivalent", "out of time"
ALARM = "false alarm"
"""A clause failed although the mutant's condition never held, so the session was sound."""


@dataclass(frozen=True, slots=True)
class MutantOutcome:
    """What became of a mutant.

    `clauses` failed it, and `named` says whether the topic of one of them names the cause. `fired` counts how often the suite met
    its condition. `difference` says where a survivor differs from the sound session in a wide play.
    """

    name: str
    operator: str
    condition: str
    cause: str
    fate: str
    clauses: tuple[str, ...] = ()
    named: bool = False
    fired: int = 0
    difference: str = ""
    stalled: tuple[str, ...] = ()
    """Clauses without a verdict; a run would not grant their level."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Limits per mutant: wide plays for a survivor, seconds of CPU time in all, and whether to run all clauses."""

    plays: int = 40
    limit_s: float = 60.0
    whole: bool = False


def wilson(hits: int, tried: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % confidence interval of a rate (E. B. Wilson, 1927), or (0, 1) if nothing was tried."""
    if not tried:
        return 0.0, 1.0
    rate, square = hits / tried, z * z / tried
    middle = (rate + square / 2) / (1 + square)
    spread = z * math.sqrt((rate * (1 - rate) + square / 4) / tried) / (1 + square)
    return max(0.0, middle - spread), min(1.0, middle + spread)


def order(mutant: Generated) -> list[Clause]:
    """Order clauses: those about the mutant's cause first, the state machine last. Only which clause fails first depends on it."""
    return sorted(CLAUSES, key=lambda clause: (clause.topic not in mutant.topics, clause.topic == "machine"))


def follow(seed: int, number: int, effort: Effort = Effort()) -> MutantOutcome:
    """Run clauses on a mutant until one fails; if none does, run wide plays until it differs from the sound session."""
    mutant, begun = drawn(seed, number), time.process_time()
    target = mutant.target()
    alone, failed, stalled, late = Alone(target), list[Clause](), list[str](), False
    for clause in order(mutant):
        if failed and not effort.whole:
            break
        if late := time.process_time() - begun > effort.limit_s:
            break
        verdict = run_clause(clause, target, alone, seed, EFFORT, shorten=False).verdict
        if verdict is Verdict.FAIL and not mutant.fired:
            alone.close()
            return _fate(mutant, ALARM, (clause.id,))
        failed += [clause] if verdict is Verdict.FAIL else []
        stalled += [clause.id] if verdict in (Verdict.ERROR, Verdict.INCONCLUSIVE) else []
    alone.close()
    fired, where = mutant.fired, ""
    fate = KILLED if failed else LATE if late else SURVIVED
    if fate == SURVIVED:
        where = difference(drawn(seed, number).target(), effort.plays)
        fate = SURVIVED if where else EQUIVALENT
    ids, named = tuple(clause.id for clause in failed), any(clause.topic in mutant.topics for clause in failed)
    return replace(_fate(mutant, fate, ids), named=named, fired=fired, difference=where, stalled=tuple(stalled))


def _fate(mutant: Generated, fate: str, clauses: tuple[str, ...]) -> MutantOutcome:
    operator, condition = mutant.cause.split(": ", 1)
    return MutantOutcome(mutant.name, operator, condition, mutant.cause, fate, clauses)


def follow_all(
    places: Sequence[tuple[int, int]], effort: Effort, processes: int, heard: Callable[[int], None]
) -> list[MutantOutcome]:
    """Follow every mutant, given by seed and number, in `processes` processes; `heard` receives how many are done."""
    found: list[MutantOutcome] = []
    with ProcessPoolExecutor(processes, get_context("spawn"), settle) as pool:
        for future in as_completed([pool.submit(follow, *place, effort) for place in places]):
            found.append(future.result())
            heard(len(found))
    return sorted(found, key=lambda fate: fate.name)


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts of fates. Equivalent mutants are not counted; those with a timeout or a false alarm count as alive."""

    tried: int
    killed: int
    named: int
    equivalent: int
    late: int
    alarms: int

    @property
    def judged(self) -> int:
        """Mutants that differ from the sound session, or may differ."""
        return self.tried - self.equivalent

    @property
    def rate(self) -> float:
        """Fraction of these that were killed."""
        return self.killed / self.judged if self.judged else 0.0


def figures(fates: Sequence[MutantOutcome]) -> Figures:
    """Count the fates."""
    counts = Counter(fate.fate for fate in fates)
    return Figures(len(fates), counts[KILLED], sum(fate.named for fate in fates), counts[EQUIVALENT], counts[LATE], counts[ALARM])


def only_by(fates: Sequence[MutantOutcome]) -> dict[str, list[str]]:
    """Map each clause to the mutants that no other clause fails, given fates from all clauses."""
    found: dict[str, list[str]] = {clause.id: [] for clause in CLAUSES}
    for fate in fates:
        if len(fate.clauses) == 1:
            found[fate.clauses[0]].append(fate.name)
    return found


def causes(fates: Sequence[MutantOutcome]) -> list[tuple[str, int, int]]:
    """Return operators and conditions with how many of their mutants survived, out of how many; most survivors first."""
    alive, all_of = Counter[str](), Counter[str]()
    for fate in fates:
        if fate.fate == EQUIVALENT:
            continue
        for part in {fate.operator.split(" (")[0], *fate.condition.split(" and ")}:
            all_of[part] += 1
            alive[part] += fate.fate != KILLED
    return sorted(((part, alive[part], all_of[part]) for part in alive if alive[part]), key=lambda item: (-item[1], item[0]))
