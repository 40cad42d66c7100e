"""Driving a session without a server: all requests at once or a single one, running one step ahead if supported."""

from __future__ import annotations

import gc
import os
import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.gpu_parts.place import Place, quiet
from tgi_core.backend import EMPTY, Capacity, Kernel, OpenOptions, Request, Sampling, Step, WarmupPlan
from tgi_core.backend.registry import find
from tgi_core.backend.session import Session

GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Lengths:
    """Input and output length of a request, in tokens."""

    prompt: int
    new: int


def drawn(count: int, low: int, high: int) -> list[Lengths]:
    """Deterministic lengths, uniform between both bounds."""
    rng = random.Random(0)
    return [Lengths(rng.randint(low, high), rng.randint(low, high)) for _ in range(count)]


class Driver:
    """A warmed-up session. Rows end by length."""

    def __init__(self, place: Place, model: Path, rows: int, row_tokens: int, step_tokens: int) -> None:
        started = time.perf_counter()
        opened = find(place.backend).open(OpenOptions(str(model), "bfloat16"), quiet)
        self.session = Session(opened, place.backend)
        self.opened_s = time.perf_counter() - started
        plan = WarmupPlan(max_rows=rows, max_row_tokens=row_tokens, max_step_tokens=step_tokens, window_blocks=0)
        self.capacity: Capacity = self.session.warmup(plan, quiet)
        self.warmed_s = time.perf_counter() - started - self.opened_s
        self._next_id = 1

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """How the model runs on this device."""
        return self.session.capabilities().kernels

    def run(self, wanted: Sequence[Lengths], sampling: Sampling = GREEDY) -> float:
        """Seconds from the first request to the last token."""
        waiting, unread = deque(self._requests(wanted, sampling)), deque[Step]()
        live: dict[int, int] = {}
        handle = EMPTY
        started = time.perf_counter()
        while waiting or live:
            batch = self._admitted(waiting, len(live))
            live |= {request.id: new for request, new in batch}
            requests = tuple(request for request, _ in batch)
            step = self.session.prefill(requests, handle, ()) if requests else self.session.decode((handle,), ())
            unread.append(step)
            live = {id: left - 1 for id, left in live.items()}
            ended = [id for id, left in live.items() if not left]
            live = {id: left for id, left in live.items() if left}
            while len(unread) >= (self.capacity.in_flight if live or waiting else 1):
                self.session.rows(unread.popleft())
            handle = step.handle
            if ended:
                handle = self.session.filter(handle, tuple(live)) if live else EMPTY
        self.session.clear(None)
        return time.perf_counter() - started

    def close(self) -> None:
        """Release the device's memory."""
        self.session.close()
        gc.collect()  # models contain reference cycles that keep device memory alive

    def _requests(self, wanted: Sequence[Lengths], sampling: Sampling) -> Iterator[tuple[Request, int]]:
        size, first = self.capacity.groups[0].block_size, 1
        for lengths in wanted:
            count = -(-(lengths.prompt + lengths.new) // size)
            if first + count > self.capacity.groups[0].num_blocks + 1:
                raise ValueError(
                    f"{len(wanted)} requests need more than the {self.capacity.groups[0].num_blocks} blocks there are"
                )
            tokens = tuple((31 * self._next_id + 7 * i) % 240 + 3 for i in range(lengths.prompt))
            blocks = (tuple(range(first, first + count)),)
            seeded = replace(sampling, seed=self._next_id)
            yield Request(self._next_id, tokens, lengths.prompt, 0, blocks, lengths.prompt, seeded), lengths.new
            self._next_id, first = self._next_id + 1, first + count

    def _admitted(self, waiting: deque[tuple[Request, int]], live: int) -> list[tuple[Request, int]]:
        """Prompts that fit into the step's token budget beside the live rows."""
        batch: list[tuple[Request, int]] = []
        left = self.capacity.max_step_tokens - live
        while waiting and waiting[0][0].take <= left and live + len(batch) < self.capacity.max_rows:
            left -= waiting[0][0].take
            batch.append(waiting.popleft())
        return batch


@contextmanager
def compiles() -> Iterator[list[str]]:
    """The kernels that Triton compiles, or loads from its cache, for the first time while the block runs, by name."""
    found: list[str] = []
    try:
        from triton import knobs
    except ImportError:
        yield found
        return

    def note(*, src: Any, **details: object) -> None:
        found.append(src.name)

    # Not `runtime.jit_post_compile_hook`: with that one set, Triton writes all constants as JSON, which shapes of attention are not.
    before, knobs.compilation.listener = knobs.compilation.listener, note
    try:
        yield found
    finally:
        knobs.compilation.listener = before


@contextmanager
def switched(**variables: str) -> Iterator[None]:
    """Set environment variables while the block runs."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
