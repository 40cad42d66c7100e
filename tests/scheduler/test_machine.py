"""The scheduler under everything at once: hypothesis looks for an order of events that breaks it.

`HYPOTHESIS_PROFILE=long` runs 500 machines of 100 steps instead of the 120 of 50 that every test run has.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.scheduler.checks import check_books, check_empty, check_shard
from tests.scheduler.device import Device, alone, quiet, request, shard
from tgi_core.backend import Feature, Mixing, WarmupPlan
from tgi_core.backend.fault_schedule import Rule, When
from tgi_core.backend.faults import FaultInjector, inject
from tgi_core.backend.reference import ReferenceSession
from tgi_core.client.result_validator import ResultValidator
from tgi_core.model_files import DEMO
from tgi_core.scheduler import DeadlineExceeded, GenerationRequest, RequestFailed, Scheduler, SchedulerOptions
from tgi_core.server.model_server import ModelServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import ShardInfo

SMALL = WarmupPlan(max_rows=4, max_row_tokens=48, max_step_tokens=16, num_blocks=24, block_size=4)
STARVED = 60
"""Turns without a fault after which the request that goes before all others must have got a token."""

prompts = st.lists(st.integers(0, 3), min_size=1, max_size=20).map(tuple)
requests = st.builds(
    request,
    prompts,
    st.integers(1, 14),
    st.none() | st.integers(0, 3),
    priority=st.sampled_from([-1, 0, 0, 0, 1]),
    client=st.sampled_from(["", "", "other", "third"]),
    urgent=st.booleans(),
    salt=st.sampled_from("ab"),
    prediction=st.just(()) | st.lists(st.integers(0, 3), max_size=20).map(tuple),
)
recoverable = st.sampled_from(["oom", "capacity", "compile", "invalid"])
fatal = st.sampled_from(["busy", "lost", "crash", "none"])
moments = st.sampled_from(When)
row_kinds = st.sampled_from(["nan", "mask", "sampler", "memory", "token"])


@pytest.fixture(autouse=True, scope="module")
def silence() -> Iterator[None]:
    """Each fault is logged, and there are many."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@cache
def tokenizer() -> Tokenizer:
    """The demo model's."""
    return Tokenizer.load(DEMO)


@cache
def solo(wanted: GenerationRequest, vocab_size: int, *windows: tuple[str, Any]) -> list[int]:
    """What a request makes when it is alone."""
    return alone(tokenizer(), wanted, vocab_size=vocab_size, **dict(windows))


class Machine(RuleBasedStateMachine):
    """A scheduler, a shard that fails on demand, a clock, and a list of who asked for what."""

    @initialize(
        asynchronous=st.booleans(),
        caching=st.booleans(),
        mixing=st.sampled_from(Mixing),
        takes=st.sampled_from([(), (), (4, 8, 16), (3, 5)]),
        draft=st.sampled_from([0, 0, 1, 3, 6]),
        earlier=st.booleans(),
        windows=st.sampled_from([{}, {}, {"window": 4}, {"window": 7, "window_blocks": 7}, {"window": 10, "only": True}]),
    )
    def begin(
        self,
        asynchronous: bool,
        caching: bool,
        mixing: Mixing,
        takes: tuple[int, ...],
        draft: int,
        earlier: bool,
        windows: dict[str, Any],
    ) -> None:
        """One ahead or in lock step, on a device that mixes or not and pads or not, with a prefix cache and drafts or without, and a model
        whose layers see all positions or a window of them."""
        self.windows = windows
        self.plan, self.vocab_size = replace(SMALL, draft=draft), 4 if draft else tokenizer().vocab_size
        self.now = 0.0
        self.asynchronous, self.mixing = asynchronous, mixing
        info, server, session, self.faults = self.fresh_shard()
        capacity = replace(server.warmup(self.plan, quiet), takes=takes)
        assert Feature.PREFIX_REUSE in info.capabilities.features
        scheduler = Scheduler(
            info.capabilities, capacity, SchedulerOptions(prefix_caching=caching, earlier_answers=earlier), clock=lambda: self.now
        )
        self.one = Device(scheduler, server, session)
        self.wanted: dict[int, GenerationRequest] = {}
        self.left: set[int] = set()
        self.broken: set[int] = set()
        """Those whose own fault was asked for."""
        self.step_faults = self.row_faults = 0
        self.calm, self.first = 0, (0, 0)

    def fresh_shard(self) -> tuple[ShardInfo, ModelServer, ReferenceSession, FaultInjector]:
        """A shard whose faults are ours to choose."""
        options = {"asynchronous": self.asynchronous, "mixing": self.mixing, "vocab_size": self.vocab_size, **self.windows}
        info, server, session = shard(tokenizer(), **options)
        return info, server, session, inject(server.session, ())

    @rule(wanted=requests)
    def add(self, wanted: GenerationRequest) -> None:
        """A request comes."""
        self.wanted[self.one.scheduler.add(wanted)] = wanted

    @precondition(lambda self: self.wanted.keys() - self.broken)
    @rule(data=st.data(), more=prompts)
    def add_alike(self, data: st.DataObject, more: tuple[int, ...]) -> None:
        """One whose prompt begins as another's, so that it may be found in the cache."""
        like = self.wanted[data.draw(st.sampled_from(sorted(self.wanted.keys() - self.broken)))]
        self.add(request((like.input_ids + more)[:24], 6, salt=like.scheduling.salt))

    @rule(seconds=st.sampled_from([0.5, 3.0]))
    def add_hurried(self, seconds: float) -> None:
        """One that has little time."""
        key = self.one.scheduler.add(wanted := request((1, 2, 3), 12, timeout_s=seconds))
        self.wanted[key] = wanted

    @rule()
    def add_invalid(self) -> None:
        """One that the shard refuses."""
        key = self.one.scheduler.add(wanted := request((2**40, 1), 4))
        self.wanted[key] = wanted
        self.broken.add(key)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), meanwhile=st.booleans())
    def cancel(self, data: st.DataObject, meanwhile: bool) -> None:
        """A client goes, between two turns or while one is under way."""
        key = data.draw(st.sampled_from(self.live))
        self.left.add(key)
        if meanwhile:
            self.turn(lambda: self.one.scheduler.cancel(key))
        else:
            self.one.scheduler.cancel(key)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), meanwhile=st.booleans())
    def stop_reading(self, data: st.DataObject, meanwhile: bool) -> None:
        """A client reads no more, between two turns or while one is under way."""
        key = data.draw(st.sampled_from(self.live))
        if meanwhile:
            self.turn(lambda: self.one.scheduler.pause(key))
        else:
            self.one.scheduler.pause(key)

    @precondition(lambda self: self.one.scheduler.paused)
    @rule(data=st.data(), meanwhile=st.booleans())
    def read_on(self, data: st.DataObject, meanwhile: bool) -> None:
        """And does so again."""
        key = data.draw(st.sampled_from(sorted(self.one.scheduler.paused)))
        if meanwhile:
            self.turn(lambda: self.one.scheduler.resume(key))
        else:
            self.one.scheduler.resume(key)

    @rule(turns=st.integers(1, 6))
    def step(self, turns: int) -> None:
        """Time passes."""
        for _ in range(turns):
            self.turn()

    @rule(kind=recoverable, when=moments)
    def fail_step(self, kind: str, when: When) -> None:
        """The next step is refused, or lost."""
        self.step_faults += 1
        self.fail_next(Rule(kind, at=(self.faults.steps + 1,), when=when))

    @rule(kind=row_kinds, row=st.sampled_from(["first", "last", "any"]), seed=st.integers(0, 9))
    def fail_row(self, kind: str, row: str, seed: int) -> None:
        """One row of the next step has failed."""
        self.row_faults += 1
        self.fail_next(Rule(kind, at=(self.faults.steps + 1,), row=row, seed=seed))

    @rule(kind=fatal, when=moments)
    def lose_session(self, kind: str, when: When) -> None:
        """The device is lost at the next step, if one comes soon."""
        self.step_faults += 1
        self.fail_next(Rule(kind, at=(self.faults.steps + 1,), when=when))

    @rule(meanwhile=st.booleans())
    def kill_shard(self, meanwhile: bool) -> None:
        """The shard is replaced, between two turns or while one is under way."""
        self.step_faults += 1
        if meanwhile:
            self.one.scheduler.plan()
        self.restart("it was killed")

    def fail_next(self, fault: Rule) -> None:
        """Two turns, in which the fault comes and is read."""
        self.faults.rules.append(fault)
        for _ in range(3):
            self.turn()
        self.faults.rules.clear()
        self.calm = 0

    def restart(self, reason: str) -> None:
        """A new shard goes on."""
        _, self.one.server, self.one.session, self.faults = self.fresh_shard()
        self.one.server.warmup(self.plan, quiet)
        self.one.answers = ResultValidator()
        self.one.take(self.one.scheduler.restart(reason))
        self.calm = 0

    def turn(self, meanwhile: object = None) -> None:
        """Plan, carry out, complete; replace a shard that has died of it."""
        self.now += 0.1
        self.one.take(self.one.scheduler.expire())
        turn = self.one.scheduler.plan()
        result = self.one.exchange(turn)
        if callable(meanwhile):
            meanwhile()
        self.one.take(self.one.scheduler.complete(result))
        if self.one.scheduler.lost is not None:
            self.restart(str(self.one.scheduler.lost))
        self.calm += 1
        read = [item for item in self.one.scheduler.sequences.values() if not item.paused]
        first = min(read, key=lambda item: item.rank, default=None)
        progress = (0, 0) if first is None else (first.key, len(first.tokens))
        if progress != self.first:
            self.calm, self.first = 0, progress

    def solo(self, key: int) -> list[int]:
        """What a request makes when it is alone."""
        without_limit = {name: value for name, value in self.windows.items() if name != "window_blocks"}
        return solo(self.wanted[key], self.vocab_size, *without_limit.items())

    @property
    def live(self) -> list[int]:
        """Keys of those who wait or run."""
        return sorted(self.one.scheduler.sequences)

    @invariant()
    def the_books_are_right(self) -> None:
        """Requests, rows, blocks and prefixes add up, here and in the shard."""
        if hasattr(self, "one"):
            check_books(self.one.scheduler)
            check_shard(self.one)

    @invariant()
    def nobody_starves(self) -> None:
        """Whoever goes before all others gets on."""
        if hasattr(self, "one"):
            assert self.calm < STARVED or self.first == (0, 0)

    @invariant()
    def everyone_gets_their_own(self) -> None:
        """Tokens are those of a run alone, as far as they have come."""
        if hasattr(self, "one"):
            for key, tokens in self.one.tokens.items():
                assert tokens == self.solo(key)[: len(tokens)], key

    def teardown(self) -> None:
        """Without more faults everyone who is read ends, complete or with a reason."""
        if not hasattr(self, "one"):
            return
        for key in list(self.one.scheduler.paused):
            self.one.scheduler.resume(key)
        for _ in range(100 + 40 * len(self.live)):
            if self.one.scheduler.idle:
                break
            self.turn()
        self.everyone_gets_their_own()
        check_empty(self.one)
        assert self.one.ended.keys() | self.left == self.wanted.keys()
        errors = {key: event.error for key, event in self.one.ended.items() if event.error is not None}
        for key in self.one.ended.keys() - errors.keys():
            assert self.one.tokens[key] == self.solo(key)
        assert self.broken <= errors.keys() | self.left
        unexplained = [
            error for key, error in errors.items() if key not in self.broken and not isinstance(error, DeadlineExceeded)
        ]
        kinds = [error.kind for error in unexplained if isinstance(error, RequestFailed)]
        assert len(kinds) == len(unexplained)
        assert len([kind for kind in kinds if kind is not None]) <= self.row_faults
        assert kinds.count(None) <= self.step_faults


LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
Machine.TestCase.settings = settings(
    max_examples=500 if LONG else 120,
    stateful_step_count=100 if LONG else 50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestMachine = Machine.TestCase
