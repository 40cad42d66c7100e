"""A shard on the reference backend that is driven turn by turn, without an event loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tgi_core.backend import Capabilities, Capacity, Feature, Mixing, OutputOptions, Sampling, WarmupPlan, hookimpl
from tgi_core.backend.reference import ReferenceSession
from tgi_core.backend.reference_windows import WindowedReferenceSession
from tgi_core.backend.session import Session
from tgi_core.client.result_validator import ResultValidator
from tgi_core.scheduler import Event, GenerationRequest, Scheduler, SchedulerOptions, SchedulingParams
from tgi_core.server.model_server import ModelServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import Filter, Prefill, ShardInfo, Stopping, Turn, TurnResult

_SCHEDULING = {field.name for field in fields(SchedulingParams)}


def quiet(what: str, done: int, total: int, unit: str) -> None:
    """Progress that nobody sees."""


@dataclass
class Device:
    """Scheduler and model server, and what each request has got so far."""

    scheduler: Scheduler
    server: ModelServer
    session: ReferenceSession
    tokens: dict[int, list[int]] = field(default_factory=dict)
    ended: dict[int, Event] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    answers: ResultValidator = field(default_factory=ResultValidator)
    """A shard that is true answers whatever it is asked."""

    def exchange(self, turn: Turn) -> TurnResult:
        """Carry out a turn."""
        result = self.server.exchange(turn)
        self.answers.check(turn, result)
        return result

    def turn(self) -> Turn:
        """Plan, carry out, complete."""
        self.take(self.scheduler.expire())
        turn = self.scheduler.plan()
        self.turns.append(turn)
        self.take(self.scheduler.complete(self.exchange(turn)))
        return turn

    def take(self, events: list[Event]) -> None:
        """Note what requests get."""
        for event in events:
            if event.generation is not None:
                self.tokens.setdefault(event.key, []).extend(token.id for token in event.generation.tokens)
            if event.error is not None or (event.generation is not None and event.generation.finished is not None):
                self.ended[event.key] = event

    def run(self, limit: int = 10_000) -> None:
        """Until there is nothing left to do."""
        for _ in range(limit):
            if self.scheduler.idle or self.scheduler.lost:
                return
            self.turn()
        raise AssertionError(f"not idle after {limit} turns")


class RestrictedSession(ReferenceSession):
    """A session that declares less than the reference backend can."""

    def __init__(self, *arguments: Any, without: frozenset[Feature], mixing: Mixing, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._without, self._mixing = without, mixing

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Less."""
        whole = super().capabilities()
        return replace(whole, features=whole.features - self._without, mixing=self._mixing)


class RestrictedWindowedSession(RestrictedSession, WindowedReferenceSession):
    """The same with layers that see a window."""


def device(
    tokenizer: Tokenizer,
    plan: WarmupPlan | None = None,
    chosen: SchedulerOptions | None = None,
    clock: Callable[[], float] = time.monotonic,
    **options: Any,
) -> Device:
    """A device with a pool of its own; `without` features or with another `mixing` it declares less; it pads to `takes`. `observe_drafts`
    as for the scheduler. With `whole_images`, it cannot cut images; with `whole_prompts`, no prompts."""
    takes, observe = options.pop("takes", ()), options.pop("observe_drafts", None)
    whole = {name: options.pop(name, False) for name in ("whole_images", "whole_prompts")}
    info, server, session = shard(tokenizer, **options)
    capabilities = replace(info.capabilities, **whole)
    capacity: Capacity = replace(server.warmup(plan or WarmupPlan(max_row_tokens=256), quiet), takes=takes)
    return Device(Scheduler(capabilities, capacity, chosen, clock, observe), server, session)


def shard(tokenizer: Tokenizer, **options: Any) -> tuple[ShardInfo, ModelServer, ReferenceSession]:
    """A model server that is not warmed up. With a small `vocab_size`, texts repeat themselves, and drafts are often right."""
    vocab_size = options.pop("vocab_size", tokenizer.vocab_size)
    restricted = {"without", "mixing"} & options.keys()
    if restricted:
        options = {"without": frozenset(), "mixing": Mixing.EAGER} | options
    plain, windowed = ReferenceSession, WindowedReferenceSession
    if restricted:
        plain, windowed = RestrictedSession, RestrictedWindowedSession
    session = (windowed if "window" in options else plain)(vocab_size, 512, **options)
    wrapped = Session(session, "reference")
    info = ShardInfo("toy", "reference", "none", "none", (1, 0), wrapped.capabilities())
    return info, ModelServer(wrapped, tokenizer, info), session


def request(prompt: tuple[int, ...], max_new_tokens: int = 8, seed: int | None = None, **given: Any) -> GenerationRequest:
    """Greedy without a seed, sampled with one; runs to its length. `given` are fields of a GenerationRequest or its SchedulingParams."""
    sampling = Sampling() if seed is None else Sampling(do_sample=True, temperature=1.3, seed=seed)
    stopping = Stopping(max_new_tokens, ignore_eos=True)
    scheduling = SchedulingParams(**{name: given.pop(name) for name in _SCHEDULING & given.keys()})
    return GenerationRequest.of(prompt, sampling, stopping, OutputOptions(), scheduling=scheduling, **given)


def scheduled(wanted: GenerationRequest, **changes: Any) -> GenerationRequest:
    """The same request with other scheduling parameters."""
    return replace(wanted, scheduling=replace(wanted.scheduling, **changes))


def alone(tokenizer: Tokenizer, wanted: GenerationRequest, **options: Any) -> list[int]:
    """What a request gets when it has the device to itself, in one chunk."""
    one = device(tokenizer, **options)
    key = one.scheduler.add(wanted)
    one.run()
    return one.tokens[key]


Script = list[tuple[int, GenerationRequest, int | None]]
"""Requests, each after how many turns since the one before it, and how many more turns its client waits."""


def play(one: Device, script: Script) -> tuple[dict[int, GenerationRequest], set[int]]:
    """Add each request after some turns, cancel some of them after more; the requests by key, and who left."""
    wanted: dict[int, GenerationRequest] = {}
    leaving: dict[int, int] = {}
    left: set[int] = set()
    clock = 0
    for wait, item, patience in script:
        for _ in range(wait):
            clock = step(one, clock, leaving, left)
        key = one.scheduler.add(item)
        wanted[key] = item
        if patience is not None:
            leaving[key] = clock + patience
    while not one.scheduler.idle:
        clock = step(one, clock, leaving, left)
    return wanted, left


def step(one: Device, clock: int, leaving: dict[int, int], left: set[int]) -> int:
    """One turn, then those whose patience is over leave."""
    one.turn()
    for key in [key for key, when in leaving.items() if when <= clock]:
        del leaving[key]
        if key not in one.ended:
            left.add(key)
        one.scheduler.cancel(key)
    return clock + 1


def launched_ids(turn: Turn) -> set[int]:
    """Wire ids of requests that a turn brings."""
    return {item.id for item in turn.launch.requests} if isinstance(turn.launch, Prefill) else set()


def filters(turn: Turn) -> list[Filter]:
    """The filters of a turn."""
    return [verb for verb in turn.bookkeeping if isinstance(verb, Filter)]
