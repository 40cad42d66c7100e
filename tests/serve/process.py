"""`tgi` as a user runs it: a child process, its standard error, a port of its own."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakSet

TGI = (str(Path(sys.executable).with_name("tgi")),)
_READY = re.compile(r"ready after ([\d.]+) s: (http://[\w.:\[\]-]+)")


SERVERS: WeakSet[ServerProcess] = WeakSet()
"""Those that tests hold; failed tests show what they printed."""


class ServerProcess:
    """A running server. `url` is where it listens; `lines` is what it has printed."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.child = child
        self.lines: list[str] = []
        self.url = ""
        self.ready_seconds = 0.0
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        SERVERS.add(self)

    def wait_ready(self, seconds: float) -> None:
        """Until it listens; AssertionError with its output if it ends before."""
        self._ready.wait(seconds)
        assert self.url, "".join(self.lines)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(60)

    def close(self, group: bool = False) -> None:
        """End it, or the process group that it leads, if it still runs; let go of its output."""
        if self.child.poll() is None and group:
            os.killpg(self.child.pid, signal.SIGTERM)
            self.child.wait(60)
        elif self.child.poll() is None:
            self.stop()
        self._reader.join()
        if self.child.stderr is not None:
            self.child.stderr.close()

    def _read(self) -> None:
        assert self.child.stderr is not None
        for line in self.child.stderr:
            self.lines.append(line)
            if found := _READY.search(line):
                self.ready_seconds, self.url = float(found.group(1)), found.group(2)
                self._ready.set()
        self._ready.set()


def free_port() -> int:
    """A port of the loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's, without what would change a server's settings, and without a network for the hub."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PORT", "HOSTNAME", "MODEL_ID"}}
    return kept | {"HF_HUB_OFFLINE": "1"} | dict(extra or {})


@contextmanager
def served(
    *arguments: str,
    tgi: tuple[str, ...] = TGI,
    extra: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    patience: float = 120,
) -> Generator[ServerProcess, None, None]:
    """A server on a free port of the loopback, ended with the block. It has `patience` seconds to start."""
    command = [*tgi, "serve", "--hostname", "127.0.0.1", "--port", "0", "--drain-delay", "0", *arguments]
    with started(command, extra, cwd, patience) as server:
        yield server


@contextmanager
def started(
    command: list[str],
    extra: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    patience: float = 120,
) -> Generator[ServerProcess, None, None]:
    """A command that becomes a server, ended with the block."""
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(extra), cwd=cwd)
    server = ServerProcess(child)
    try:
        server.wait_ready(patience)
        yield server
    finally:
        server.close()


def run(*arguments: str, tgi: tuple[str, ...] = TGI, extra: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return subprocess.run([*tgi, *arguments], capture_output=True, text=True, timeout=120, env=environment(extra), check=False)
