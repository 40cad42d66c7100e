"""A worker that does what it is told: to itself, or with the next of its kind."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tgi_core.workers.serving import serve

_SIGNALS = {"abort": signal.SIGABRT, "segfault": signal.SIGSEGV, "kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def answer(request: bytes) -> bytes:
    """`echo TEXT`, `pid`, `spin`, `raise`, the name of a signal, or `once PATH NAME`, which spares whoever finds the file."""
    verb, *words = request.decode().split()
    if verb == "once":
        path = Path(words[0])
        if path.exists():
            return b"spared"
        path.touch()
        verb = words[1]
    if verb == "pid":
        return str(os.getpid()).encode()
    if verb == "exit":
        os._exit(0)
    if verb == "raise":
        raise RuntimeError
    while verb == "spin":
        pass
    if verb in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[verb])
    return " ".join(words).encode()


if __name__ == "__main__":
    serve(answer, float(sys.argv[2]), 1 << 30)
