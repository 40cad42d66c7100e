"""What to run: mutants and twins against clauses, for each seed, in as many processes as there are cores."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from tgi_conformance.baseline import Alone
from tgi_conformance.clause import Clause
from tgi_conformance.clause_run import run_clause
from tgi_conformance.clauses import CLAUSES
from tgi_conformance.mutants import EVERY, MUTANTS, TWINS
from tgi_conformance.verdict import Level

JUDGING = tuple(clause for clause in CLAUSES if clause.level is not Level.L4)
"""The clauses that can fail; L4 only reports figures."""

LITTLE = 0.1
"""Effort for clauses not meant for a mutant, and for twins on all seeds but the first."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One mutant or twin on one seed; `meant` says whether the clauses are meant for it."""

    name: str
    clauses: tuple[str, ...]
    seed: int
    effort: float
    meant: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict of one clause on one mutant or twin, for one seed."""

    name: str
    clause: str
    seed: int
    meant: bool
    verdict: str
    message: str


def trials(names: Iterable[str], seeds: int) -> Iterator[Trial]:
    """Yield the trials of the named mutants and twins.

    A mutant runs the clauses meant for it on every seed, and once, with little effort, all others up to the lowest level it breaks,
    because a run would stop there. A twin runs all clauses on every seed, with little effort after the first. Clauses that start
    other processes, about packages and ranks, run on one seed.
    """
    for name in names:
        if name in TWINS:
            every = tuple(clause.id for clause in JUDGING if clause.level is not Level.L0)
            drawn = _drawn(every)
            yield from (Trial(name, drawn if seed else every, seed, LITTLE if seed else 1.0, True) for seed in range(seeds))
            continue
        meant = MUTANTS[name].killed_by
        yield from (Trial(name, chosen, seed, 1.0, True) for seed in range(seeds) if (chosen := _drawn(meant) if seed else meant))
        yield Trial(name, tuple(clause.id for clause in _others(name)), 0, LITTLE, False)


def _drawn(ids: tuple[str, ...]) -> tuple[str, ...]:
    """Return the clauses that depend on the seed and are cheap enough for many."""
    return tuple(id for id in ids if not id.startswith(("package.", "ranks.")))


def _others(name: str) -> Iterator[Clause]:
    """Return the other clauses: L0 for a mutant that is a package, the rest for one that is a session."""
    meant, packaged = MUTANTS[name].killed_by, MUTANTS[name].entry is not None
    highest = min(item.level.value for item in JUDGING if item.id in meant)
    return (
        item for item in JUDGING if item.id not in meant and item.level.value <= highest and (item.level is Level.L0) is packaged
    )


def run_trial(trial: Trial) -> list[Outcome]:
    """Run all clauses of a trial."""
    by_id = {clause.id: clause for clause in CLAUSES}
    target = EVERY[trial.name].target()
    alone, found = Alone(target), []
    try:
        for id in trial.clauses:
            result = run_clause(by_id[id], target, alone, trial.seed, trial.effort, shorten=False)
            found.append(Outcome(trial.name, id, trial.seed, trial.meant, result.verdict.value, result.message))
    finally:
        alone.close()
    return found


def run_all(chosen: Sequence[Trial], processes: int | None, heard: Callable[[int], None]) -> list[Outcome]:
    """Run all trials, longest first; `heard` receives how many are done."""
    ordered = sorted(chosen, key=lambda trial: (-len(trial.clauses) * trial.effort, trial.name, trial.seed))
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(processes or len(os.sched_getaffinity(0)), get_context("spawn"), settle) as pool:
        for done, future in enumerate(as_completed([pool.submit(run_trial, trial) for trial in ordered]), 1):
            outcomes += future.result()
            heard(done)
    return outcomes


def settle() -> None:
    """Exclude what this process has imported from garbage collection, since it stays."""
    gc.collect()
    gc.freeze()
