"""Replicas on a virtual clock, with the placement and the prefix indexes that serve, and a roofline model of each device."""

from __future__ import annotations

import itertools
import math
import time
from array import array
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from statistics import mean, pstdev
from typing import Any

from bench.replicas.conversations import EACH_S, Conversation, Turn
from bench.scheduling.device import Roofline
from tgi_core.replicas.holders import Holders, SharedPrefixIndex
from tgi_core.replicas.placement import Charge, Choice, Placement
from tgi_core.scheduler.prefix import Entry, PrefixIndex

_FIRST_S, _EACH_S = 2.0, 0.1
"""Targets: the time to the first token, and the time per further token."""


@dataclass(slots=True, eq=False)
class Job:
    """A turn on its replica."""

    turn: Turn
    conversation: Conversation
    charge: Charge
    left: int = 0
    """Prompt tokens to compute."""
    entries: list[Entry] = field(default_factory=list)
    own: int = 0
    """Blocks that are in no index."""
    first: float = 0.0


@dataclass(slots=True)
class Result:
    """Results of one run, of the turns that arrive in its window. `decision_us`: CPU time, mean and 99th percentile."""

    requests: int = 0
    refused: int = 0
    good: int = 0
    seconds: float = 0.0
    query_tokens: int = 0
    hit_tokens: int = 0
    big_cache_hit_tokens: int = 0
    busy: float = 0.0
    """Mean share of time in which replicas were busy."""
    imbalance: float = 0.0
    """Standard deviation of the replicas' computed tokens, relative to their mean."""
    first_p50: float = 0.0
    first_p99: float = 0.0
    decision_us: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Window:
    """What is measured, in seconds: turns that arrive from `begin` to `end`, after which none do. At most `queued` turns wait; further
    ones are refused."""

    begin: float = 0.0
    end: float = math.inf
    queued: float = math.inf


class Device:
    """One replica: continuous batching with prompts in chunks. Blocks for a whole answer are reserved when it starts."""

    def __init__(self, roofline: Roofline, prefixes: PrefixIndex) -> None:
        self.roofline, self.prefixes = roofline, prefixes
        self.waiting, self.prompts = deque[Job](), deque[Job]()
        self._decoding: list[tuple[int, int, Job]] = []
        self._own = self._context = self._steps = 0
        self._ids = itertools.count()
        self.running = False
        self.busy_s = 0.0
        self.tokens = 0
        self._chunks: list[tuple[Job, int]] = []

    @property
    def blocks_free(self) -> int:
        """Blocks that can be allocated, including those of idle prefixes."""
        return self.roofline.num_blocks - len(self.prefixes.entries) - self._own + self.prefixes.idle

    @property
    def idle(self) -> bool:
        """Whether nothing runs."""
        return not (self.prompts or self._decoding)

    def admit(self) -> list[Job]:
        """Start waiting jobs while there is room."""
        started: list[Job] = []
        size = self.roofline.block_size
        while self.waiting and len(self.prompts) + len(self._decoding) < self.roofline.max_rows:
            job = self.waiting[0]
            found = self.prefixes.find(job.turn.keys)
            need = -(-(job.turn.prompt + job.turn.answer) // size) - len(found)
            if need > self.blocks_free:
                self._drop(found)
                break
            while need > self.blocks_free - self.prefixes.idle:
                self.prefixes.evict()
            self.waiting.popleft()
            job.entries, job.own, job.left = found, need, job.turn.prompt - len(found) * size
            self._own += need
            self.prompts.append(job)
            started.append(job)
        return started

    def step(self) -> float:
        """Begin a step and return its seconds."""
        room = self.roofline.max_step_tokens - len(self._decoding)
        self._chunks = []
        for job in self.prompts:
            if room <= 0:
                break
            take = min(room, job.left)
            self._chunks.append((job, take))
            room -= take
        tokens = len(self._decoding) + sum(take for _, take in self._chunks)
        line = self.roofline
        seconds = line.launch + max(tokens * line.token, line.weights + self._context * line.context)
        self.busy_s += seconds
        self.tokens += tokens
        return seconds

    def finish_step(self, now: float) -> list[Job]:
        """End the step and return the jobs that are done."""
        self._steps += 1
        self._context += len(self._decoding)
        done: list[Job] = []
        while self._decoding and self._decoding[0][0] <= self._steps:
            _, _, job = heappop(self._decoding)
            self._leave(job)
            done.append(job)
        for job, take in self._chunks:
            job.left -= take
            if not job.left:
                self.prompts.remove(job)
                job.first = now
                self._enter(job, job.turn.keys)
                self._context += job.turn.prompt
                heappush(self._decoding, (self._steps + max(1, job.turn.answer - 1), next(self._ids), job))
        return done

    def _enter(self, job: Job, keys: list[bytes]) -> None:
        for key in keys[len(job.entries) :]:
            entry = self.prefixes.add(key, 0)
            if entry is not None:
                job.entries.append(entry)
                job.own -= 1
                self._own -= 1

    def _leave(self, job: Job) -> None:
        self._enter(job, [*job.turn.keys, *job.turn.after])
        self._own -= job.own
        self._context -= job.turn.prompt + max(1, job.turn.answer - 1)
        self._drop(job.entries)

    def _drop(self, entries: list[Entry]) -> None:
        for entry in reversed(entries):
            self.prefixes.drop(entry)


class BigCache:
    """One cache as big as all together, which sees every request: the most that placement could find."""

    def __init__(self, block_size: int, num_blocks: int) -> None:
        self._prefixes, self._num_blocks = PrefixIndex(block_size), num_blocks
        self._size = block_size

    def find(self, turn: Turn) -> int:
        """Return the tokens found."""
        found = self._prefixes.find(turn.keys)
        self._drop(found)
        return len(found) * self._size

    def add(self, keys: list[bytes]) -> None:
        """Add a prefix."""
        entries = self._prefixes.find(keys)
        for key in keys[len(entries) :]:
            if len(self._prefixes.entries) >= self._num_blocks and self._prefixes.idle:
                self._prefixes.evict()
            entry = self._prefixes.add(key, 0)
            if entry is not None:
                entries.append(entry)
        self._drop(entries)

    def _drop(self, entries: list[Entry]) -> None:
        for entry in reversed(entries):
            self._prefixes.drop(entry)


class Simulation:
    """One run of `count` replicas."""

    def __init__(
        self, count: int, roofline: Roofline, placement: Placement, holders: Holders, window: Window | None = None
    ) -> None:
        self._placement, self._window = placement, window or Window()
        self._waiting = 0
        self._devices = [Device(roofline, SharedPrefixIndex(roofline.block_size, holders, number)) for number in range(count)]
        for device in self._devices:
            placement.add(lambda device=device: device.blocks_free)  # type: ignore[misc]
        self._big = BigCache(roofline.block_size, count * roofline.num_blocks)
        self._events: list[tuple[float, int, Any]] = []
        self._ids = itertools.count()
        self._decisions, self._firsts = array("d"), array("d")
        self.result = Result()

    def run(self, begins: list[tuple[float, Conversation]]) -> Result:
        """Serve all conversations."""
        now = 0.0
        for at, conversation in begins:
            self._arrive(at, conversation)
        begin, end = self._window.begin, self._window.end
        while self._events:
            now, _, what = heappop(self._events)
            if now >= begin > 0.0:
                begin = 0.0
                for device in self._devices:
                    device.busy_s = device.tokens = 0
            if now >= end and not self.result.seconds:
                self._note_work(end)
            if isinstance(what, int):
                self._stepped(now, what)
            else:
                self._place(now, *what)
        if not self.result.seconds:
            self._note_work(now)
        self._sum_up()
        return self.result

    def _arrive(self, at: float, conversation: Conversation) -> None:
        turn = conversation.next() if at < self._window.end else None
        if turn is not None:
            turn.at = at
            heappush(self._events, (at, next(self._ids), (conversation, turn)))

    def _place(self, now: float, conversation: Conversation, turn: Turn) -> None:
        measured = now >= self._window.begin
        self.result.requests += measured
        if conversation.paced:
            self._arrive(now + turn.answer * EACH_S + conversation.pause(), conversation)
        if self._waiting >= self._window.queued:
            self.result.refused += measured
            return
        begun = time.thread_time()
        choice = self._placement.choose(turn.prompt, turn.keys, turn.answer) or Choice(0, 0)
        charge = self._placement.place(choice, turn.prompt, 1000)
        self._decisions.append(time.thread_time() - begun)
        found = self._big.find(turn)
        if measured:
            self.result.query_tokens += turn.prompt
            self.result.big_cache_hit_tokens += found
        self._waiting += 1
        device = self._devices[choice.replica]
        device.waiting.append(Job(turn, conversation, charge))
        if not device.running:
            self._step(now, choice.replica)

    def _step(self, now: float, number: int) -> None:
        device = self._devices[number]
        for job in device.admit():
            self._placement.started(job.charge)
            self._waiting -= 1
            if job.turn.at >= self._window.begin:
                self.result.hit_tokens += job.turn.prompt - job.left
        device.running = not device.idle
        if device.running:
            heappush(self._events, (now + device.step(), next(self._ids), number))

    def _stepped(self, now: float, number: int) -> None:
        for job in self._devices[number].finish_step(now):
            self._placement.ended(job.charge, job.turn.answer)
            self._big.add([*job.turn.keys, *job.turn.after])
            first, each = job.first - job.turn.at, (now - job.first) / max(1, job.turn.answer - 1)
            if job.turn.at >= self._window.begin:
                self._firsts.append(first)
                self.result.good += first <= _FIRST_S and each <= _EACH_S
            if not job.conversation.paced:
                self._arrive(now + job.conversation.pause(), job.conversation)
        self._step(now, number)

    def _note_work(self, now: float) -> None:
        """Note how busy the replicas were until `now`."""
        result, tokens = self.result, [device.tokens for device in self._devices]
        result.seconds = now - self._window.begin
        result.busy = mean(device.busy_s for device in self._devices) / result.seconds
        result.imbalance = pstdev(tokens) / mean(tokens)

    def _sum_up(self) -> None:
        result, firsts, decisions = self.result, sorted(self._firsts), sorted(self._decisions)
        result.first_p50, result.first_p99 = firsts[len(firsts) // 2], firsts[int(0.99 * len(firsts))]
        result.decision_us = 1e6 * mean(decisions), 1e6 * decisions[int(0.99 * len(decisions))]
