"""Measurements of a server under streaming load, with a device that uses no CPU time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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


def one(url: str, route: str, streams: int, tokens: int, seconds: float, pids: list[int]) -> Measured:
    """Take one measurement in a child process."""
    command = [sys.executable, "-m", "bench.front.streams", url, route, str(streams), str(tokens), str(seconds)]
    done = subprocess.run([*command, ",".join(map(str, pids))], capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return Measured(**json.loads(done.stdout))


@dataclass(frozen=True, slots=True)
class RunSelection:
    """What to measure: every combination of server mode, route and number of streams, for `seconds` each, with `tokens` per
    answer."""

    forms: Sequence[str] = tuple(FORMS)
    routes: Sequence[str] = ("native", "chat")
    streams: Sequence[int] = (32, 64, 256)
    tokens: int = 200
    seconds: float = 6.0
    step_ms: float = 0.0
    backend: str = "null"


def runs(selection: RunSelection) -> Iterator[Run]:
    """Take all measurements."""
    for form in selection.forms:
        with ExitStack() as stack:
            extra = stack.enter_context(installed(selection.step_ms))
            flags = ("--backend", selection.backend, "--max-concurrent-requests", "1024", "--max-batch-size", "512")
            server = stack.enter_context(served(*flags, *FORMS[form], extra=extra))
            process = psutil.Process(server.child.pid)
            pids = [process.pid, *(child.pid for child in process.children() if "shard" in child.cmdline())]
            for route in selection.routes:
                for streams in selection.streams:
                    made = one(server.url, route, streams, selection.tokens, selection.seconds, pids)
                    yield Run(form, route, streams, made)
