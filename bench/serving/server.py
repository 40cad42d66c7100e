"""A server process under test: starting it, waiting for readiness, reading CPU time and memory, stopping it."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

TGI = str(Path(sys.executable).with_name("tgi"))


class ServerError(Exception):
    """A server exited, or did not start in time."""


class Server:
    """Run a server while the block runs. `{port}` in the command is replaced by a free port. Raises ServerError."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, health: str = "/health"
    ) -> None:
        self.port = free_port()
        self._command = [part.replace("{port}", str(self.port)) for part in command]
        self._log, self._health = log, health
        self._environment = {**os.environ, "HF_HUB_OFFLINE": "1", **(environment or {})}
        self.started = 0.0
        """Start time of the process, as of time.perf_counter."""

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self.started = time.perf_counter()
            self._child = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environment)
        self._process = psutil.Process(self._child.pid)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        tree = self.processes() if self._child.poll() is None else []
        self._child.terminate()
        try:
            self._child.wait(60)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        for process in psutil.wait_procs(tree, timeout=10)[1]:
            process.kill()

    def wait_ready(self, seconds: float) -> float:
        """Wait until the health route returns 200; returns the seconds since start."""
        while time.perf_counter() < self.started + seconds:
            if self._child.poll() is not None:
                raise ServerError(f"{self._command[0]}: ended with status {self._child.returncode}; see {self._log}")
            if self._healthy():
                return time.perf_counter() - self.started
            time.sleep(0.02)
        raise ServerError(f"{self._command[0]}: not ready after {seconds:.0f} s; see {self._log}")

    def processes(self) -> list[psutil.Process]:
        """The server's process, then its child processes."""
        return [self._process, *self._process.children(recursive=True)]

    def cpu_seconds(self) -> dict[str, float]:
        """User plus system time by process: `server`, then `child 1` and so on."""
        times = [process.cpu_times() for process in self.processes()]
        return {f"child {number}" if number else "server": time.user + time.system for number, time in enumerate(times)}

    def resident(self) -> list[int]:
        """Memory of each process in bytes, the server's first."""
        return [int(process.memory_info().rss) for process in self.processes()]

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", self._health)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def free_port() -> int:
    """A free port on the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def tgi_command(model: Path | None, backend: str, *flags: str) -> list[str]:
    """Command for `tgi serve` on loopback; the default model is the bundled demo model."""
    options = ["--hostname", "127.0.0.1", "--port", "{port}", "--drain-delay", "0", "--backend", backend]
    return [TGI, "serve", *([] if model is None else [str(model)]), *options, *flags]
