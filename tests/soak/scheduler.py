"""Soak A: scheduler, model server and reference backend on a virtual clock, with every kind of fault, cancels and preemption.

What must hold between two turns is checked after each; memory is sampled as requests go by.
"""

from __future__ import annotations

import gc
import logging
import random
import sys
import tracemalloc
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.scheduler.checks import check_books, check_empty, check_shard
from tests.scheduler.device import Device, quiet, request, shard
from tests.soak.slope import slope
from tgi_core.backend import WarmupPlan
from tgi_core.backend.fault_schedule import ROW_KINDS, STEP_KINDS, Rule, When
from tgi_core.backend.faults import inject
from tgi_core.model_files import DEMO
from tgi_core.scheduler import DeadlineExceeded, Scheduler
from tgi_core.tokenizer import Tokenizer

PLAN = WarmupPlan(max_rows=12, max_row_tokens=48, max_step_tokens=64, num_blocks=30, block_size=4)
BYTES_PER_REQUEST = 1024 / 1000
"""What may be kept of a request: 1 KiB per 1,000 of them."""
SAMPLES = 100
"""At most."""
_BLOCK_BYTES = 64
A_LONG_TIME_S = 1e8
"""Most requests end long before they must; nothing of their deadlines may stay."""
STARVED = 400
"""Turns in which whoever goes before all others must have got on, faults or not."""
RULES = tuple(
    Rule(kind, p=0.01, seed=seed, when=list(When)[seed % 3] if kind in STEP_KINDS else When.VERB)
    for seed, kind in enumerate([*STEP_KINDS, *ROW_KINDS, *STEP_KINDS])
)
"""Every kind at one in a hundred steps, those of whole steps at two different moments."""
ONE_SHARD = tuple(
    rule
    for rule in RULES
    if rule.kind not in ("busy", "lost", "crash", "none") and (rule.kind != "invalid" or rule.when is When.VERB)
)
"""The faults that a shard survives; a backend that calls its own step invalid when it is read is lost. Memory is measured with these: a
new session in the same process is no part of serving."""


@dataclass(slots=True)
class Report:
    """What a run has seen, and (requests so far, bytes) in `counts` and `sizes`: arrays made beforehand, which do not grow."""

    requests: int = 0
    turns: int = 0
    restarts: int = 0
    cancelled: int = 0
    failed: int = 0
    completed: int = 0
    preempted: int = 0
    injected: dict[str, int] = field(default_factory=dict)
    counts: array[float] = field(default_factory=lambda: array("d", bytes(8 * SAMPLES)))
    sizes: array[float] = field(default_factory=lambda: array("d", bytes(8 * SAMPLES)))
    sampled: int = 0

    @property
    def bytes_per_request(self) -> float:
        """How fast memory grows, after the first quarter."""
        known = [*zip(self.counts, self.sizes, strict=True)][: self.sampled]
        return slope(known[len(known) // 4 :])


class Soak:
    """A device, its faults and its clients."""

    def __init__(self, seed: int, leak: int = 0, rules: tuple[Rule, ...] = RULES) -> None:
        self._random = random.Random(seed)
        self._tokenizer = Tokenizer.load(DEMO)
        for id in range(self._tokenizer.vocab_size):
            self._tokenizer.piece(id)  # all texts that will be looked up: what is kept of tokens is not of requests
        self._leak = leak
        self._leaked: list[bytes] = []
        self._now = 0.0
        self._asynchronous = bool(seed % 2)
        info, server, session = shard(self._tokenizer, asynchronous=self._asynchronous)
        self._injector = inject(server.session, rules)
        capacity = server.warmup(PLAN, quiet)
        self.one = Device(Scheduler(info.capabilities, capacity, clock=lambda: self._now), server, session)
        self.report = Report()
        self._first, self._since = (0, 0), 0

    def run(self, requests: int, sample_every: int) -> Report:
        """Until so many have come and gone."""
        while self.report.requests < requests:
            if len(self.one.scheduler.sequences) < 20 and self._random.random() < 0.8:
                self._come(sample_every)
            self._turn()
        self._drain()
        return self.report

    def _drain(self) -> None:
        """Let everyone end, without faults."""
        rules, self._injector.rules = self._injector.rules, []
        while not self.one.scheduler.idle:
            self._turn()
        check_empty(self.one)
        self._injector.rules = rules

    def _come(self, sample_every: int) -> None:
        chance, report = self._random, self.report
        prompt = tuple(chance.choices(range(4), k=chance.randint(1, 24)))
        key = self.one.scheduler.add(
            request(
                prompt,
                chance.randint(1, 12),
                seed=chance.choice([None, 7]),
                priority=chance.choice([0, 0, 1]),
                timeout_s=5.0 if chance.random() < 0.01 else A_LONG_TIME_S,
            )
        )
        if chance.random() < 0.02:
            report.cancelled += 1
            self.one.scheduler.cancel(chance.choice(sorted(self.one.scheduler.sequences)))
        report.requests += 1
        if self._leak:
            self._leaked.append(bytes([key % 256]) * self._leak)
        if report.requests % sample_every == 0:
            self._drain()
            self.one.scheduler.restart("no prefix is to be left of them")
            report.counts[report.sampled], report.sizes[report.sampled] = report.requests, memory()
            report.sampled += 1

    def _turn(self) -> None:
        self._now += 0.05
        one, report = self.one, self.report
        report.turns += 1
        one.take(one.scheduler.expire())
        waiting = {item.key for item in one.scheduler.shard.rows.values()}
        turn = one.scheduler.plan()
        report.preempted += sum(item.key in waiting for item in one.scheduler.queue)
        one.take(one.scheduler.complete(one.server.exchange(turn)))
        if one.scheduler.lost is not None:
            self._replace_shard(str(one.scheduler.lost))
        self._count()
        check_books(one.scheduler)
        check_shard(one)
        self._check_progress()

    def _count(self) -> None:
        for event in self.one.ended.values():
            self.report.completed += event.error is None
            self.report.failed += event.error is not None and not isinstance(event.error, DeadlineExceeded)
        self.one.ended.clear()
        self.one.tokens.clear()
        self.one.turns.clear()

    def _check_progress(self) -> None:
        first = min(self.one.scheduler.sequences.values(), key=lambda item: item.rank, default=None)
        progress = (0, 0) if first is None else (first.key, len(first.tokens))
        self._since = self._since + 1 if progress == self._first and first is not None else 0
        self._first = progress
        assert self._since < STARVED, f"request {progress[0]} starves"

    def _replace_shard(self, reason: str) -> None:
        self.report.restarts += 1
        for kind, count in self._injector.injected.items():
            self.report.injected[kind] = self.report.injected.get(kind, 0) + count
        _, self.one.server, self.one.session = shard(self._tokenizer, asynchronous=self._asynchronous)
        rules = tuple(Rule(r.kind, p=r.p, seed=r.seed + 1000 * self.report.restarts, when=r.when) for r in self._injector.rules)
        self._injector = inject(self.one.server.session, rules)
        self.one.server.warmup(PLAN, quiet)
        self.one.take(self.one.scheduler.restart(reason))


def memory() -> float:
    """Bytes in use: exact while memory is traced, which costs ten times the work itself; else small blocks at their usual size."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0] if tracemalloc.is_tracing() else _BLOCK_BYTES * sys.getallocatedblocks()


@contextmanager
def quietly(traced: bool) -> Iterator[None]:
    """Faults are not logged, and Python's memory is traced if wanted."""
    logging.disable(logging.CRITICAL)
    if traced:
        tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        logging.disable(logging.NOTSET)


def soak(
    requests: int, seed: int, leak: int = 0, samples: int = 16, traced: bool = False, rules: tuple[Rule, ...] = RULES
) -> Report:
    """A run from start to end; `leak` bytes are kept of each request on purpose."""
    with quietly(traced):
        return Soak(seed, leak, rules).run(requests, max(1, requests // samples))


def run(minutes: float) -> list[str]:
    """The long form: 432,000 requests, a day at five a second, whatever the minutes. What went wrong."""
    found: list[str] = []
    for seed, requests, traced in ((1, 211_000, False), (2, 211_000, False), (3, 10_000, True)):
        report = soak(requests, seed, samples=50, traced=traced, rules=ONE_SHARD)
        print(
            f"seed {seed}: {report.requests} requests in {report.turns} turns, {report.restarts} restarts, "
            f"{report.failed} failed, {report.cancelled} cancelled, {1000 * report.bytes_per_request:.0f} bytes per 1,000"
        )
        if report.bytes_per_request > BYTES_PER_REQUEST:
            found.append(f"seed {seed}: memory grows by {report.bytes_per_request:.2f} bytes per request")
    return found
