"""The server as process 1 of a container, played by a namespace of process ids."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import psutil
import pytest

from tests.serve.process import TGI, ServerProcess, started

CONTAINER = ("unshare", "-rpf", "--kill-child")
ORPHAN = '(sh -c "exit 3" &); exec "$@"'


@contextmanager
def first_process() -> Iterator[tuple[ServerProcess, psutil.Process]]:
    """A server, and its process 1 as it is seen from outside."""
    if shutil.which("unshare") is None or subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces of process ids here")
    serve = ["serve", "--backend", "reference", "--hostname", "127.0.0.1", "--port", "0", "--drain-delay", "0"]
    with started([*CONTAINER, "sh", "-c", ORPHAN, "sh", *TGI, *serve]) as server:
        [first] = psutil.Process(server.child.pid).children()
        try:
            yield server, first
        finally:
            with suppress(psutil.NoSuchProcess):
                first.kill()  # and all that is in it; unshare itself takes no signals
            server.child.wait(60)


def test_orphans_are_reaped() -> None:
    """A process that somebody else has left behind is no zombie for long; SIGTERM drains, and the status is 0."""
    with first_process() as (server, first):
        assert httpx.post(f"{server.url}/generate", json={"inputs": "a"}, timeout=60).status_code == 200
        below = first.children(recursive=True)
        assert len(below) >= 2 and psutil.STATUS_ZOMBIE not in {process.status() for process in below}
        first.send_signal(signal.SIGTERM)
        assert server.child.wait(60) == 0


def test_the_status_is_that_of_the_server() -> None:
    """When the server is killed the container ends, with the status by which shells tell of a signal."""
    with first_process() as (server, first):
        [real] = first.children()
        real.kill()
        assert server.child.wait(60) == 128 + signal.SIGKILL
