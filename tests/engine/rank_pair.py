"""Two ranks of a model: a test's own process, and a worker that answers it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tgi_core.backend import BackendError
from tgi_core.server.rank_link import Link, LinkClosed


@contextmanager
def rank_worker(module: str) -> Generator[Link, None, None]:
    """A worker, `python -m MODULE FD`, as long as the block runs; see `answer`."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-W", "ignore", "-m", module, str(theirs.fileno())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    worker = subprocess.Popen(command, pass_fds=(theirs.fileno(),), env=environment)
    theirs.close()
    link = Link(ours)
    try:
        yield link
    finally:
        link.close()
        assert worker.wait(60) == 0


def answer(run: Callable[..., dict[str, Any]]) -> None:
    """In a worker: run rank 1 of each checkpoint, store and more that the test sends, until it is gone."""
    os.environ["OMP_NUM_THREADS"] = "1"
    link = Link(socket.socket(fileno=int(sys.argv[1])))
    try:
        while True:
            folder, store, *more = link.receive()
            try:
                link.send(run(Path(folder), Path(store), 1, *more))
            except BackendError as error:
                link.send({"error": f"{type(error).__name__}: {error}"})
    except LinkClosed:
        return
