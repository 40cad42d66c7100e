"""Who goes first: priorities that age, patience for the big, deadlines, a queue with an end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.device import Device, alone, device, launched_ids, request
from tgi_core.backend import Mixing, WarmupPlan
from tgi_core.scheduler import DeadlineExceeded, Overloaded, SchedulerOptions
from tgi_core.scheduler.policy import MAX_OVERTAKEN
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import Prefill

ONE_ROW = WarmupPlan(max_rows=1, max_row_tokens=64)


class Clock:
    """A time that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def order(one: Device, keys: list[int]) -> list[int]:
    """Places in `keys`, in the order in which they end."""
    one.run()
    return [keys.index(key) for key in one.ended]


def test_a_higher_priority_goes_first(demo_tokenizer: Tokenizer) -> None:
    """Of those that wait, the most urgent; among equals the one that came first."""
    one = device(demo_tokenizer, ONE_ROW)
    one.scheduler.add(request((1,), 3))
    one.turn()
    keys = [one.scheduler.add(request((2,), 2, priority=priority)) for priority in (0, 1, 0, 2, 1)]
    one.run()
    assert [keys.index(key) for key in one.ended if key in keys] == [3, 1, 4, 0, 2]


def test_waiting_makes_up_for_priority(demo_tokenizer: Tokenizer) -> None:
    """After ageing_s seconds a request is as urgent as a newcomer of the next priority, and goes before it."""
    clock = Clock()
    one = device(demo_tokenizer, ONE_ROW, SchedulerOptions(ageing_s=10.0), clock)
    low = one.scheduler.add(request((1,), 2))
    clock.now = 10.5
    high = one.scheduler.add(request((1,), 2, priority=1))
    assert order(one, [low, high]) == [0, 1]


@given(lengths=st.lists(st.integers(1, 30), min_size=2, max_size=12))
@settings(max_examples=40, deadline=None)
def test_equals_start_in_the_order_in_which_they_came(demo_tokenizer: Tokenizer, lengths: list[int]) -> None:
    """Where everyone has room, nobody starts before an older request of the same priority."""
    one = device(demo_tokenizer, WarmupPlan(max_rows=2, max_row_tokens=64, max_step_tokens=8))
    for length in lengths:
        one.scheduler.add(request(tuple(range(length)), 3))
    one.run()
    brought = [sent.request for turn in one.turns if isinstance(turn.launch, Prefill) for sent in turn.launch.requests]
    assert [len(sent.tokens) for sent in brought if sent.prompt_len == len(sent.tokens)] == lengths


def test_the_small_go_past_the_big_but_not_for_ever(demo_tokenizer: Tokenizer) -> None:
    """A prompt that finds no room does not stop those behind it, until so many have overtaken it that it is its turn."""
    plan = WarmupPlan(max_rows=8, max_row_tokens=64, max_step_tokens=64, num_blocks=16, block_size=4)
    one = device(demo_tokenizer, plan)
    one.scheduler.add(request(tuple(range(20)), 40))
    one.turn()
    big = one.scheduler.add(request(tuple(range(50)), 4))
    first = one.scheduler.add(request((1, 2), 2))
    one.turn()
    assert one.scheduler.snapshot.queued == 1  # the big one; the small one runs
    small = [one.scheduler.add(request((1, 2), 20)) for _ in range(2 * MAX_OVERTAKEN)]
    one.run()
    ended = list(one.ended)
    assert ended.index(first) < ended.index(big) < ended.index(small[-1])
    assert one.tokens[big] == alone(demo_tokenizer, request(tuple(range(50)), 4))


def test_a_long_prompt_does_not_keep_others_from_beginning(demo_tokenizer: Tokenizer) -> None:
    """While a long prompt is computed in chunks, a short one that comes later gets its first token first."""
    one = device(demo_tokenizer, WarmupPlan(max_rows=4, max_row_tokens=512, max_step_tokens=16))
    long = one.scheduler.add(request(tuple(range(300)), 2))
    one.turn()
    short = one.scheduler.add(request((1, 2, 3), 2))
    one.run()
    assert list(one.ended) == [short, long]


def test_deadlines(demo_tokenizer: Tokenizer) -> None:
    """A request whose time is up ends, waiting or running, and its blocks are free; others go on."""
    clock = Clock()
    one = device(demo_tokenizer, WarmupPlan(max_rows=2, max_row_tokens=64), clock=clock)
    running = one.scheduler.add(request((1, 2), 40, timeout_s=5.0))
    stays = one.scheduler.add(request((1, 2), 20))
    waiting = one.scheduler.add(request((1, 2), 4, timeout_s=3.0))
    for second in (1.0, 2.0, 3.0, 4.0, 5.0):
        clock.now = second
        one.turn()
    assert isinstance(one.ended[running].error, DeadlineExceeded) and isinstance(one.ended[waiting].error, DeadlineExceeded)
    assert waiting not in one.tokens and one.tokens[running]
    one.run()
    assert one.tokens[stays] == alone(demo_tokenizer, request((1, 2), 20))
    assert one.scheduler.snapshot.blocks_free == one.scheduler.snapshot.blocks_total


@pytest.mark.parametrize("bounds", [{"max_queued_requests": 2}, {"max_queued_tokens": 8}])
def test_the_queue_has_an_end(demo_tokenizer: Tokenizer, bounds: dict[str, Any]) -> None:
    """By requests or by tokens: one too many is turned away with the time after which to come again."""
    one = device(demo_tokenizer, ONE_ROW, SchedulerOptions(**bounds))
    for _ in range(2):
        one.scheduler.add(request((1, 2, 3, 4), 2))
    with pytest.raises(Overloaded) as refusal:
        one.scheduler.add(request((1,), 2))
    assert refusal.value.retry_after_s >= 1.0
    one.run()
    one.scheduler.add(request((1,), 2))


def test_a_prompt_larger_than_the_queue_waits_alone(demo_tokenizer: Tokenizer) -> None:
    """The bound in tokens never turns away what finds the queue empty."""
    one = device(demo_tokenizer, chosen=SchedulerOptions(max_queued_tokens=3))
    one.scheduler.add(request((1, 2, 3, 4), 2))


def test_a_pause_must_be_worth_it(demo_tokenizer: Tokenizer) -> None:
    """Where prefill stops the others, it waits for enough newcomers, or for max_waiting_tokens steps."""
    options = SchedulerOptions(waiting_served_ratio=1.0, max_waiting_tokens=6)
    one = device(demo_tokenizer, WarmupPlan(max_rows=8, max_row_tokens=64), options, mixing=Mixing.NONE, asynchronous=False)
    for _ in range(4):
        one.scheduler.add(request((1, 2), 40))
    one.turn()
    one.scheduler.add(request((3, 4), 4))
    waits = [bool(launched_ids(one.turn())) for _ in range(8)]
    assert waits == [False] * 6 + [True, False]
    for _ in range(5):
        one.scheduler.add(request((3, 4), 4))
    assert launched_ids(one.turn())
