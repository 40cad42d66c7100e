"""One run on a backend: probe its device, run the clauses in a child process, and apply known failures."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from tgi_conformance.child import TIME_LIMIT_S, ImportReport, probe_in_child
from tgi_conformance.clause import Clause
from tgi_conformance.clause_order import Selection, run_clauses, run_clauses_together
from tgi_conformance.clauses import CLAUSES
from tgi_conformance.known import KnownFailure, apply
from tgi_conformance.result import Result
from tgi_conformance.subject import Subject
from tgi_conformance.worker import Settings, Worker


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, and how."""

    settings: Settings
    time_limit_s: float
    keep_going: bool
    wanted: Callable[[Clause], bool]
    known: dict[str, KnownFailure]
    today: datetime.date
    processes: int = 1
    """How many clauses run at a time."""


@dataclass(frozen=True, slots=True)
class ProbedDevices:
    """What the probe found. `absent` says why only L0 can run, or is "" if the device is there."""

    devices: tuple[str, ...] = ()
    verified_on_hardware: bool = False
    absent: str = ""


class RunListener(Protocol):
    """Receives progress and results of a run."""

    def starting(self, clause: Clause) -> None:
        """Report that a clause starts."""

    def result(self, clause: Clause, result: Result) -> None:
        """Report a clause's result."""


def perform(plan: Plan, subject: Subject, listener: RunListener) -> tuple[list[tuple[Clause, Result]], ProbedDevices]:
    """Run every wanted clause; the others are NOT RUN."""
    seen = probe_in_child(subject.target.entry.module, min(TIME_LIMIT_S, plan.time_limit_s)) if subject.target.entry else None
    found = probed(seen)
    workers = [Worker(replace(plan.settings, seen=seen), plan.time_limit_s) for _ in range(plan.processes)]
    selection = Selection(plan.wanted, plan.keep_going, found.absent)
    results = {}
    try:
        if len(workers) == 1:
            runs = run_clauses(CLAUSES, workers[0], selection, starting=listener.starting)
        else:
            runs = run_clauses_together(CLAUSES, workers, selection, starting=listener.starting)
        for clause, result in runs:
            judged = apply(result, plan.known.get(clause.id), plan.today)
            listener.result(clause, judged)
            results[clause.id] = judged
    finally:
        for worker in workers:
            worker.close()
    return [(clause, results[clause.id]) for clause in CLAUSES], found


def probed(seen: ImportReport | None) -> ProbedDevices:
    """Return what the probe found. A session without a package needs no probe."""
    if seen is None:
        return ProbedDevices()
    probe = seen.probe
    if probe.get("status") == "ready":
        return ProbedDevices(tuple(probe["devices"]), bool(probe["verified_on_hardware"]))
    if "status" in probe:
        return ProbedDevices(absent=f"the device is {probe['status']}: {probe['reason']}")
    return ProbedDevices(absent="the probe did not answer")
