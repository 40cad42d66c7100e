"""Time that the host spends on a step of the run-ahead engine, over a device that computes nothing.

    python bench/host.py [--rows 1 32 256] [--steps 300] [--json OUT]

Time per step is the CPU time of the calls `decode` and `rows` of a session whose device takes no time, in a run of decode steps in which
one row in sixteen gets a block. The idle share is the part of the time in which a device waits for the host, if its steps take as long as
a model's, and scheduler, model server and session run in one process, without a network.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import deque
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from bench.timed_device import BLOCK_SIZE, TimedQueue, open_timed
from tgi_core.backend import EMPTY, Grant, Handle, OutputOptions, Request, Sampling, Step, WarmupPlan
from tgi_core.backend.session import Session
from tgi_core.model_files import DEMO
from tgi_core.scheduler import GenerationRequest, Scheduler
from tgi_core.server.model_server import ModelServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import ShardInfo, Stopping

VOCABULARY, ROW_TOKENS = 151_936, 2048

KINDS = {
    "greedy": Sampling(),
    "drawn": Sampling(do_sample=True, temperature=0.8),
    "top-p 0.9, top-k 50": Sampling(do_sample=True, temperature=0.8, top_p=0.9, top_k=50),
    "repetition penalty 1.1": Sampling(do_sample=True, temperature=0.8, repetition_penalty=1.1),
}

MODELS = {"Llama-3.1-8B, 1 row": (1, 4.3e-3), "Qwen3-0.6B, 256 rows": (256, 3.2e-3)}
"""Rows, and seconds per decode step on an H200: about what reading the weights, and rows of 500 tokens, takes."""


def _quiet(what: str, done: float, total: float, unit: str) -> None:
    """Report no progress."""


def opened(queue: TimedQueue, rows: int) -> Session:
    """A session that has not been warmed up."""
    return Session(open_timed(queue, rows, ROW_TOKENS, VOCABULARY), "timed")


class Decoding:
    """A session in the middle of a run of decode steps, one step ahead of what has been read."""

    def __init__(self, rows: int, sampling: Sampling) -> None:
        self.session = opened(TimedQueue(0), rows)
        self.session.warmup(WarmupPlan(max_rows=rows), _quiet)
        self._next_block = 1
        self._lengths = {id: 1 + id % BLOCK_SIZE for id in range(1, rows + 1)}
        requests = tuple(self._request(id, length, sampling) for id, length in self._lengths.items())
        self._unread: deque[Step] = deque()
        self._handle: Handle = EMPTY
        self._launch(self.session.prefill(requests, EMPTY, ()))
        for _ in range(4):
            self.step()

    def step(self) -> float:
        """Launch a step and read the one before; the seconds that both calls took."""
        grants = tuple(self._grants())
        started = time.thread_time()
        step = self.session.decode((self._handle,), grants)
        self.session.rows(self._unread.popleft())
        taken = time.thread_time() - started
        self._launch(step)
        return taken

    def close(self) -> None:
        """Free the session."""
        self.session.close()

    def _launch(self, step: Step) -> None:
        self._handle = step.handle
        self._unread.append(step)

    def _request(self, id: int, length: int, sampling: Sampling) -> Request:
        return Request(id, (7,) * length, length, 0, ((self._block(),),), length, sampling)

    def _grants(self) -> list[Grant]:
        """A block for every row whose last one is full."""
        found = []
        for id, length in self._lengths.items():
            self._lengths[id] = length + 1
            if length % BLOCK_SIZE == 0:
                found.append(Grant(id, 1, ((self._block(),),)))
        return found

    def _block(self) -> int:
        self._next_block += 1
        return self._next_block - 1


def host_ms(rows: int, sampling: Sampling, steps: int) -> float:
    """Milliseconds of the host per decode step, median."""
    decoding = Decoding(rows, sampling)
    found = median(decoding.step() for _ in range(min(steps, ROW_TOKENS - 2 * BLOCK_SIZE)))
    decoding.close()
    return found * 1e3


def idle_share(rows: int, step_s: float, steps: int) -> float:
    """The share of the time in which the device waits for the host while `rows` requests decode."""
    queue = TimedQueue(step_s)
    session = opened(queue, rows)
    info = ShardInfo("timed", "timed", "none", "none", (1, 0), session.capabilities())
    server = ModelServer(session, Tokenizer.load(DEMO), info)
    scheduler = Scheduler(info.capabilities, server.warmup(WarmupPlan(max_rows=rows), _quiet))
    for number in range(rows):
        stopping = Stopping(ROW_TOKENS // 2, ignore_eos=True)
        scheduler.add(GenerationRequest.of((number % 200,) * BLOCK_SIZE, Sampling(), stopping, OutputOptions(logprobs=False)))
    for number in range(steps + 10):
        if number == 10:
            queue.start_over()
        scheduler.complete(server.exchange(scheduler.plan()))
    server.close()
    return queue.idle_s / (queue.idle_s + queue.busy_s)


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", type=Path, help="also write the figures there")
    args = parser.parse_args()
    gc.disable()
    times = {kind: {rows: host_ms(rows, sampling, args.steps) for rows in args.rows} for kind, sampling in KINDS.items()}
    idle = {model: idle_share(rows, step_s, args.steps) for model, (rows, step_s) in MODELS.items()}
    table = Table("ms of the host per decode step", *(f"{rows} rows" for rows in args.rows))
    for kind, found in times.items():
        table.add_row(kind, *(f"{value:.3f}" for value in found.values()))
    console = Console()
    console.print(table)
    for model, share in idle.items():
        console.print(f"{model}: the device idles {share:.1%} of the time")
    if args.json:
        args.json.write_text(json.dumps({"host_ms": times, "idle": idle}, indent=1) + "\n")


if __name__ == "__main__":
    main()
