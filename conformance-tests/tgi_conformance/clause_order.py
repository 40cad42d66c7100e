"""The order in which clauses run, and when to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from queue import SimpleQueue

from tgi_conformance.clause import Clause
from tgi_conformance.result import Result, not_run
from tgi_conformance.verdict import Level, Verdict

MAX_TIMEOUTS = 3
"""The run ends after this many clauses in a row have reached the time limit."""

Attempt = Callable[[Clause], Result]


@dataclass(slots=True)
class Gate:
    """Decides whether to run a clause: not if a lower level failed, unless `keep_going`, and never after an essential clause failed or
    `MAX_TIMEOUTS` clauses in a row timed out."""

    keep_going: bool = False
    _closed: str = ""
    _timed_out: int = 0
    """Clauses in a row, up to the last one."""
    _failed: dict[Level, str] = field(default_factory=dict)

    def why_not(self, clause: Clause) -> str:
        """Return why a clause need not run, or ""."""
        if self._closed:
            return self._closed
        below = [(level, id) for level, id in self._failed.items() if level.value < clause.level.value]
        return f"{below[0][1]} of {below[0][0].value} failed" if below and not self.keep_going else ""

    def note(self, clause: Clause, result: Result) -> None:
        """Record a clause's result."""
        self._timed_out = self._timed_out + 1 if result.timed_out else 0
        if self._timed_out >= MAX_TIMEOUTS:
            self._closed = f"{clause.id} and the {MAX_TIMEOUTS - 1} clauses before it reached the time limit"
        if result.verdict not in (Verdict.FAIL, Verdict.ERROR) or clause.provisional:
            return
        self._failed.setdefault(clause.level, clause.id)
        if clause.essential:
            self._closed = f"{clause.id} failed"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which clauses run. `absent` says why there is no device, in which case only L0 clauses run."""

    wanted: Callable[[Clause], bool] = lambda clause: True
    keep_going: bool = False
    absent: str = ""

    def why_not(self, clause: Clause, gate: Gate) -> str:
        """Return why a clause does not run, or ""."""
        why = gate.why_not(clause) if self.wanted(clause) else "not requested"
        return why or (self.absent if clause.level is not Level.L0 else "")


def run_clauses(
    clauses: Iterable[Clause],
    attempt: Attempt,
    selection: Selection = Selection(),
    *,
    starting: Callable[[Clause], None] = lambda clause: None,
) -> Iterator[tuple[Clause, Result]]:
    """Run clauses in order."""
    gate = Gate(selection.keep_going)
    for clause in clauses:
        yield clause, _run(clause, attempt, selection, gate, starting)


def run_clauses_together(
    clauses: Sequence[Clause],
    attempts: Sequence[Attempt],
    selection: Selection = Selection(),
    *,
    starting: Callable[[Clause], None] = lambda clause: None,
) -> Iterator[tuple[Clause, Result]]:
    """Run as many clauses at a time as there are `attempts`, each of which runs one at a time; results come as soon as they are known.

    A level waits for the one below; if the run keeps going, all of them wait for L0 only. Essential clauses start first.
    """
    gate, free = Gate(selection.keep_going), SimpleQueue[Attempt]()
    for attempt in attempts:
        free.put(attempt)

    def run(clause: Clause) -> tuple[Clause, Result]:
        attempt = free.get()
        try:
            return clause, _run(clause, attempt, selection, gate, starting)
        finally:
            free.put(attempt)

    above = list(Level)[1:]
    with ThreadPoolExecutor(len(attempts)) as pool:
        for levels in ([Level.L0], above) if selection.keep_going else ([level] for level in Level):
            # Random traffic, which takes longest, is the last of its level, so it starts first here.
            chosen = [clause for clause in clauses[::-1] if clause.level in levels]
            chosen.sort(key=lambda clause: not clause.essential)
            for done in as_completed([pool.submit(run, clause) for clause in chosen]):
                yield done.result()


def _run(clause: Clause, attempt: Attempt, selection: Selection, gate: Gate, starting: Callable[[Clause], None]) -> Result:
    if why := selection.why_not(clause, gate):
        return not_run(clause.id, why)
    starting(clause)
    result = attempt(clause)
    gate.note(clause, result)
    return result
