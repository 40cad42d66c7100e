"""The order in which clauses run, and when to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tgi_conformance.clause import Clause
from tgi_conformance.result import Result, not_run
from tgi_conformance.verdict import Level, Verdict

MAX_TIMEOUTS = 3
"""After so many clauses in a row that reached the time limit the run is over."""

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


def run_clauses(
    clauses: Iterable[Clause],
    attempt: Attempt,
    *,
    wanted: Callable[[Clause], bool] = lambda clause: True,
    keep_going: bool = False,
    absent: str = "",
    starting: Callable[[Clause], None] = lambda clause: None,
) -> Iterator[tuple[Clause, Result]]:
    """Run clauses in order. `absent` says why there is no device, in which case only L0 clauses run."""
    gate = Gate(keep_going)
    for clause in clauses:
        why = "not requested" if not wanted(clause) else gate.why_not(clause)
        if not why and absent and clause.level is not Level.L0:
            why = absent
        if why:
            yield clause, not_run(clause.id, why)
            continue
        starting(clause)
        result = attempt(clause)
        gate.note(clause, result)
        yield clause, result
