"""Grammars are first compiled in a child process, which can be ended.

llguidance bounds most of its work by fuel, but not all: the intersection of a dozen patterns or a `multipleOf` of a million runs for
hours. A grammar that costs the child more than its allowance of processor time or memory, or its life, is refused.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable

from tgi_core.workers.command import python

SECONDS = 1.0
"""Processor time that compiling one grammar may take."""
MEMORY_BYTES = 2 * 2**30
"""Address space of the child."""
_READY = b"ready\n"


class Trial:
    """The child process; started on first use and again after its end. Thread-safe: one grammar at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._close_child: Callable[[], object] = lambda: None

    def run(self, source: str) -> str:
        """What is wrong with a grammar in llguidance's notation, "" if nothing. Raises RuntimeError when no child can be started."""
        with self._lock:
            child = self._child if self._child is not None and self._child.poll() is None else self._start()
            if child.stdin is None or child.stdout is None:
                raise RuntimeError("the child that compiles grammars has no pipes")
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps(source).encode() + b"\n")
                child.stdin.flush()
            answer = child.stdout.readline()
            if not answer:
                self._close_child()
                return "it is too complex"
            return str(json.loads(answer))

    def close(self) -> None:
        """End the child. Idempotent; a later run starts another."""
        with self._lock:
            self._close_child()
            self._child = None

    def _start(self) -> subprocess.Popen[bytes]:
        self._close_child()
        command = python("tgi_core.grammar.trial")
        pipe = subprocess.PIPE
        child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True)
        self._child = child
        self._close_child = weakref.finalize(self, _end, child)
        if child.stdout is None or child.stdout.readline() != _READY:
            raise RuntimeError("the child process that compiles grammars does not start")
        return child


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    with contextlib.suppress(BrokenPipeError):
        child.communicate()


def _serve() -> None:
    """The child: a line in, a line out, until its input ends. It has no handler for the timer's signal, which therefore ends it."""
    from tgi_core.grammar.matching import bytes_vocabulary, fault

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    vocabulary = bytes_vocabulary()
    sys.stdout.buffer.write(_READY)
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        error = fault(vocabulary, json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps(error).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
