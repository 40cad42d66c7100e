"""Runs clauses in a separate process: a device that hangs or crashes takes only one clause with it.

`python -m tgi_conformance.worker` reads its settings as one line of JSON, then ids of clauses, and answers each with one line.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tgi_conformance.baseline import Alone
from tgi_conformance.call_log import Calls, Journal, read_journal
from tgi_conformance.child import ImportReport
from tgi_conformance.clause import Clause
from tgi_conformance.clause_run import run_clause
from tgi_conformance.clauses import CLAUSES
from tgi_conformance.result import Result
from tgi_conformance.subject import resolve
from tgi_conformance.verdict import Verdict
from tgi_core.workers.command import python, same_imports

_MARK = "\x1e"
"""Start of an answer, since libraries may write anything to standard output."""

_START_S = 120.0
"""Seconds that the child may take to import the suite, which does not count for a clause."""

_MANY = 50
"""If this many calls have returned, the clause may be slow as a whole."""

_GRACE_S = 20.0
"""Seconds that the child may take to close its sessions."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run."""

    backend: str
    model: str | None = None
    dtype: str = "float32"
    seed: int = 0
    effort: float = 1.0
    seen: ImportReport | None = None
    """What the plugin did in the child process that probed its device; once per run is enough."""


class Worker:
    """A child process that runs clauses; it is started when needed, and again if it is lost."""

    def __init__(self, settings: Settings, time_limit_s: float) -> None:
        self._settings, self._time_limit_s = settings, time_limit_s
        self._child: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._listener = threading.Thread()
        self._folder = tempfile.TemporaryDirectory(prefix="tgi-conformance-")
        self._journal = Path(self._folder.name) / "calls"
        self._journal.touch()

    def __call__(self, clause: Clause) -> Result:
        """Try one clause."""
        child = self._child or self._start()
        self._journal.write_text("")
        try:
            self._tell(child, clause.id)
            answer = self._answers.get(timeout=self._time_limit_s)
        except queue.Empty:
            self._end(0)
            calls = read_journal(self._journal)
            why = _too_long(self._time_limit_s, calls)
            return Result(clause.id, Verdict.FAIL, why, self._time_limit_s, sequence=calls.sequence, timed_out=True)
        except BrokenPipeError:
            answer = None
        if answer is None:
            status = child.wait()
            self._end()
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            calls = read_journal(self._journal)
            where = f", in {calls.open}" if calls.open else ""
            return Result(clause.id, Verdict.FAIL, f"the process ended while it ran: {how}{where}", sequence=calls.sequence)
        return Result.from_json(json.loads(answer))

    def close(self) -> None:
        """End the child after giving it time to close its sessions. The worker is not used again."""
        self._end()
        self._folder.cleanup()

    def _end(self, grace_s: float = _GRACE_S) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(BrokenPipeError):
            if child.stdin is not None:
                child.stdin.close()
        try:
            child.wait(grace_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        self._listener.join()
        if child.stdout is not None:
            child.stdout.close()

    def _start(self) -> subprocess.Popen[str]:
        command = python("tgi_conformance.worker")
        # Models this small gain nothing from threads; hypothesis' own files don't belong in the user's folder.
        environment = {"OMP_NUM_THREADS": "1", "HYPOTHESIS_STORAGE_DIRECTORY": self._folder.name} | same_imports()
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment
        )
        self._child, self._answers, ready = child, queue.Queue(), threading.Event()
        self._listener = threading.Thread(target=_listen, args=(child, self._answers, ready), daemon=True)
        self._listener.start()
        self._tell(child, json.dumps(asdict(self._settings) | {"journal": str(self._journal)}))
        ready.wait(_START_S)
        return child

    @staticmethod
    def _tell(child: subprocess.Popen[str], line: str) -> None:
        if child.stdin is not None:
            child.stdin.write(line + "\n")
            child.stdin.flush()


def _too_long(limit_s: float, calls: Calls) -> str:
    advice = "--time-limit allows more, a smaller --effort draws less"
    took = f"it took more than {limit_s:g} s, the --time-limit of a clause, and its process was ended"
    if not calls.open:
        return f"{took}; {advice}"
    if len(calls.sequence) > _MANY:  # with so many calls returned, the last one need not hang
        return f"{took} after {len(calls.sequence)} calls, during {calls.open}; {advice}"
    return f"{calls.open} did not return within {limit_s:g} s, the --time-limit of a clause, and its process was ended"


def _listen(child: subprocess.Popen[str], answers: queue.Queue[str | None], ready: threading.Event) -> None:
    for line in child.stdout or ():
        if line.startswith(_MARK):
            if answer := line[len(_MARK) :].strip():
                answers.put(answer)
            ready.set()
    answers.put(None)
    ready.set()


@contextlib.contextmanager
def attempts(settings: Settings, journal: Journal) -> Iterator[Callable[[Clause], Result]]:
    """Run clauses in this process; in the end, their shared sessions are closed. Every call is recorded in `journal`."""
    target = resolve(settings.backend, Path(settings.model) if settings.model else None, settings.dtype).target
    target = replace(target, seen=settings.seen, journal=journal)
    alone = Alone(target)
    try:
        yield lambda clause: run_clause(clause, target, alone, settings.seed, settings.effort)
    finally:
        alone.close()


def main() -> None:
    """The main function of the child. Its first answer, when it is ready, is empty."""
    print(_MARK, flush=True)
    by_id = {clause.id: clause for clause in CLAUSES}
    tried: Callable[[Clause], Result] | None = None
    told = json.loads(sys.stdin.readline())
    journal = Journal(told.pop("journal"))
    settings = Settings(**told | {"seen": ImportReport(**told["seen"]) if told["seen"] else None})
    with contextlib.ExitStack() as closing:
        for line in sys.stdin:
            tried = tried or closing.enter_context(attempts(settings, journal))
            answer = tried(by_id[line.strip()]).as_json()
            print(_MARK + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
