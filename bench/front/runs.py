"""Measurements of a server under streaming load, with a device that uses no CPU time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import psutil

from bench.front.null_backend import installed
from bench.front.streams import Measured
from tests.serve.process import served

ROOT = Path(__file__).resolve().parents[2]
FORMS = {"child": (), "in-process": ("--in-process",)}


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement."""

    form: str
    route: str
    streams: int
    measured: Measured
    replicas: int = 1


def one(url: str, route: str, streams: int, tokens: int, seconds: float, pids: list[int]) -> Measured:
    """Take one measurement in a child process."""
    command = [sys.executable, "-m", "bench.front.streams", url, route, str(streams), str(tokens), str(seconds)]
    done = subprocess.run([*command, ",".join(map(str, pids))], capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return Measured(**json.loads(done.stdout))


@dataclass(frozen=True, slots=True)
class RunSelection:
    """What to measure: every combination of server mode, number of replicas, route and number of streams per replica, for `seconds`
    each, with `tokens` per answer."""

    forms: Sequence[str] = tuple(FORMS)
    routes: Sequence[str] = ("native", "chat")
    streams: Sequence[int] = (32, 64, 256)
    tokens: int = 200
    seconds: float = 6.0
    step_ms: float = 0.0
    backend: str = "null"
    replicas: Sequence[int] = (1,)


def runs(selection: RunSelection) -> Iterator[Run]:
    """Take all measurements."""
    for form, replicas in product(selection.forms, selection.replicas):
        with ExitStack() as stack:
            extra = stack.enter_context(installed(selection.step_ms))
            flags = ["--backend", selection.backend, "--max-concurrent-requests", "2048", "--max-batch-size", "512"]
            flags += ["--replicas", str(replicas)] if replicas > 1 else []
            server = stack.enter_context(served(*flags, *FORMS[form], extra=extra))
            process = psutil.Process(server.child.pid)
            pids = [process.pid, *(child.pid for child in process.children() if "shard" in child.cmdline())]
            for route in selection.routes:
                for streams in selection.streams:
                    made = one(server.url, route, replicas * streams, selection.tokens, selection.seconds, pids)
                    yield Run(form, route, replicas * streams, made, replicas)
