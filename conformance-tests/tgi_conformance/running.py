"""One run on a backend: probe its device, run the clauses in a child process, and apply known failures."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from tgi_conformance.child import TIME_LIMIT_S, Seen, look
from tgi_conformance.clause import Clause
from tgi_conformance.clauses import CLAUSES
from tgi_conformance.course import run_course
from tgi_conformance.known import Known, apply
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
    known: dict[str, Known]
    today: datetime.date


@dataclass(frozen=True, slots=True)
class Found:
    """What the probe found. `absent` says why only L0 can run, or is "" if the device is there."""

    devices: tuple[str, ...] = ()
    verified_on_hardware: bool = False
    absent: str = ""


class Telling(Protocol):
    """Receives progress and results of a run."""

    def starting(self, clause: Clause) -> None:
        """Report that a clause starts."""

    def result(self, clause: Clause, result: Result) -> None:
        """Report a clause's result."""


def perform(plan: Plan, subject: Subject, telling: Telling) -> tuple[list[tuple[Clause, Result]], Found]:
    """Run every wanted clause; the others are NOT RUN."""
    seen = look(subject.target.entry.module, min(TIME_LIMIT_S, plan.time_limit_s)) if subject.target.entry else None
    found = probed(seen)
    worker = Worker(replace(plan.settings, seen=seen), plan.time_limit_s)
    results = []
    try:
        course = run_course(
            CLAUSES, worker, wanted=plan.wanted, keep_going=plan.keep_going, absent=found.absent, starting=telling.starting
        )
        for clause, result in course:
            judged = apply(result, plan.known.get(clause.id), plan.today)
            telling.result(clause, judged)
            results.append((clause, judged))
    finally:
        worker.close()
    return results, found


def probed(seen: Seen | None) -> Found:
    """Return what the probe found. A session without a package needs no probe."""
    if seen is None:
        return Found()
    probe = seen.probe
    if probe.get("status") == "ready":
        return Found(tuple(probe["devices"]), bool(probe["verified_on_hardware"]))
    if "status" in probe:
        return Found(absent=f"the device is {probe['status']}: {probe['reason']}")
    return Found(absent="the probe did not answer")
