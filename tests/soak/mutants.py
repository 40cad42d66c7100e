"""Broken HTTP in the long form: 100,000 mutants of good requests, and what the process holds afterwards."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx
import psutil

from tests.router.test_mutator import Sent, exchange, mutant, patient_server, series, statuses
from tests.serve.process import ServerProcess

MUTANTS = 100_000
CROWD = 32
WARM_UP = 2_000
RSS_BYTES = 50_000_000


@dataclass(slots=True)
class Report:
    """What a run has seen."""

    mutants: int = 0
    answers: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """Answers that are the server's fault, with what drew them."""
    exited: bool = False
    rss_grown: int = 0
    series_new: set[str] = field(default_factory=set)

    def wrong(self) -> list[str]:
        """What must not be."""
        found = list(self.faults[:5])
        if self.exited:
            found.append("the server has ended")
        if self.rss_grown > RSS_BYTES:
            found.append(f"memory grew by {self.rss_grown / 1e6:.0f} MB")
        if self.series_new:
            found.append(f"new series: {sorted(self.series_new)[:5]}")
        return found


def soak(mutants: int, seed: int, minutes: float = float("inf"), warm_up: int = WARM_UP) -> Report:
    """So many mutants, unless the time is up before, to a server that has been warmed up by some."""
    chance, report = random.Random(seed), Report()
    with patient_server() as server:
        process, known = psutil.Process(server.child.pid), series(server)
        end = time.monotonic() + 60 * minutes
        _send(server, chance, Report(), warm_up)
        before = process.memory_info().rss
        while report.mutants < mutants and time.monotonic() < end and server.child.poll() is None:
            _send(server, chance, report, CROWD)
            del server.lines[:-1000]
        report.exited = server.child.poll() is not None
        if not report.exited:
            plain = httpx.post(f"{server.url}/generate", json={"inputs": "Hi", "parameters": {"max_new_tokens": 2}}, timeout=30)
            report.answers[plain.status_code] += 1
            report.series_new = series(server) - known
            report.rss_grown = process.memory_info().rss - before
    return report


def _send(server: ServerProcess, chance: random.Random, report: Report, count: int) -> None:
    for _ in range(-(-count // CROWD)):
        crowd = [mutant(chance) for _ in range(CROWD)]
        for sent, answers in zip(crowd, exchange(server, crowd), strict=True):
            _note(sent, list(statuses(answers)), report)


def _note(sent: Sent, found: list[int], report: Report) -> None:
    report.mutants += 1
    report.answers.update(found)
    report.faults += [f"{status} for {sent!r}" for status in found if status >= 500]


def run(minutes: float) -> list[str]:
    """The long form. What went wrong."""
    start = time.monotonic()
    report = soak(MUTANTS, seed=1, minutes=minutes)
    print(
        f"{report.mutants} mutants in {time.monotonic() - start:.0f} s, answers {dict(sorted(report.answers.items()))}, "
        f"memory {report.rss_grown / 1e6:+.1f} MB, {len(report.series_new)} new series"
    )
    return report.wrong()
