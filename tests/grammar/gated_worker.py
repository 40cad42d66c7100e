"""The worker that tries grammars, with accidents: what `GATES` has as files happens to it.

`NUMBER-SIGNAL`: it ends itself so once. A grammar whose text has the name of a FIFO there waits until that can be read; one with `costly`
takes more than the quick lane allows.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from pathlib import Path

from tgi_core.grammar import matching, validation_worker
from tgi_core.grammar.limits import QUICK_SECONDS
from tgi_core.workers.serving import serve

GATES = Path(os.environ["GATES"])


def suffer(source: str, quick: bool) -> None:
    """What is to happen before the answer."""
    for path in sorted(GATES.iterdir()):
        if not stat.S_ISFIFO(path.stat().st_mode):
            path.unlink()
            os.kill(os.getpid(), signal.Signals[path.name.partition("-")[2]])
    while quick and "costly" in source:
        pass
    for path in GATES.iterdir():
        if path.name in source:
            path.read_bytes()


def main() -> None:
    """As the real one."""
    vocabulary = matching.bytes_vocabulary()
    seconds = float(sys.argv[2])

    def answer(request: bytes) -> bytes:
        suffer(json.loads(request)[1], seconds <= QUICK_SECONDS)
        return validation_worker.answered(vocabulary, request)

    serve(answer, seconds, validation_worker.MEMORY_BYTES)


if __name__ == "__main__":
    main()
