"""Window groups: rows give back what they no longer see, others get it at once, and nobody's text changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.checks import check_books, check_empty
from tests.scheduler.device import Device, alone, device, play, request
from tests.scheduler.test_prefixes import ask
from tgi_core.backend import NULL_BLOCK, CacheKind, OutOfMemory, WarmupPlan
from tgi_core.blocks import most_window_blocks
from tgi_core.scheduler import GenerationRequest, SchedulerOptions
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import Prefill

PLAN = WarmupPlan(max_rows=4, max_row_tokens=400, max_step_tokens=16, num_blocks=400, block_size=4)
WINDOW = 8
ENOUGH = -(-(WINDOW + 16 - 2) // 4) + 1
"""Blocks of the window group in which one row can always go on."""


def windowed(tokenizer: Tokenizer, plan: WarmupPlan = PLAN, chosen: SchedulerOptions | None = None, **options: Any) -> Device:
    """A device with a window group."""
    return device(tokenizer, plan, chosen, **{"window": WINDOW, **options})


def window_pool(one: Device) -> tuple[int, int]:
    """Blocks of the window group that rows hold, and all of them."""
    pool, index = one.scheduler.memory.pools.pools[-1], one.scheduler.memory.indexes[-1]
    return pool.num_blocks - pool.free - index.idle, pool.num_blocks


long_prompts = st.builds(
    lambda token, length: tuple((token * n) % 7 for n in range(length)), st.integers(1, 5), st.integers(1, 90)
)
requests = st.builds(
    request,
    long_prompts,
    st.integers(1, 40),
    st.none() | st.integers(0, 9),
    salt=st.sampled_from(["", "a"]),
    priority=st.integers(0, 2),
)
arrivals = st.lists(st.tuples(st.integers(0, 6), requests, st.none() | st.integers(0, 12)), min_size=2, max_size=8)


@given(
    script=arrivals,
    failing=st.none() | st.integers(1, 12),
    window=st.integers(1, 20),
    spare=st.integers(0, 12),
    only=st.booleans(),
    asynchronous=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_windows_change_no_token(
    demo_tokenizer: Tokenizer,
    script: list[tuple[int, GenerationRequest, int | None]],
    failing: int | None,
    window: int,
    spare: int,
    only: bool,
    asynchronous: bool,
) -> None:
    """In as few blocks as one row needs, or a few more: whatever is preempted, reused, lost or left, everyone gets what they would get
    alone, and every block comes back."""
    faults = {} if failing is None else {failing: OutOfMemory("full")}
    options: dict[str, Any] = {"window": window, "only": only, "asynchronous": asynchronous}
    blocks = -(-(window + PLAN.max_step_tokens - 2) // 4) + 1 + spare if PLAN.max_step_tokens else None
    one = device(demo_tokenizer, PLAN, faults=faults, window_blocks=blocks, **options)
    wanted, left = play(one, script)
    for key, item in wanted.items():
        expected = alone(demo_tokenizer, item, **options)
        got = one.tokens.get(key, [])
        assert got == (expected[: len(got)] if key in left else expected)
    check_empty(one)
    assert window_pool(one)[0] == 0


def test_a_row_holds_its_window_and_no_more(demo_tokenizer: Tokenizer) -> None:
    """A prompt of 40 windows is computed in chunks that free what lies behind them, and its answer of 20 windows likewise: in 7 blocks."""
    one = windowed(demo_tokenizer, replace(PLAN, max_row_tokens=500), window_blocks=ENOUGH)
    key = one.scheduler.add(request(tuple(n % 11 for n in range(320)), 160))
    most = 0
    while not one.scheduler.idle:
        one.turn()
        check_books(one.scheduler)
        most = max(most, window_pool(one)[0])
    assert len(one.tokens[key]) == 160 and most <= ENOUGH == 7
    assert window_pool(one) == (0, 7)


def test_freed_blocks_serve_the_next_row_at_once(demo_tokenizer: Tokenizer) -> None:
    """Four rows of 100 tokens run together in as many blocks as their windows take, without being preempted."""
    each = most_window_blocks(windowed(demo_tokenizer).scheduler.memory._groups[-1], 1) + 1
    one = windowed(demo_tokenizer, window_blocks=4 * each + 4)
    items = [request(tuple((n * k) % 13 for n in range(60)), 40) for k in range(1, 5)]
    keys = [one.scheduler.add(item) for item in items]
    one.run()
    begun = [sent for turn in one.turns if isinstance(turn.launch, Prefill) for sent in turn.launch.requests]
    assert len(begun) == len(keys), "none began twice"
    for key, item in zip(keys, items, strict=True):
        assert one.tokens[key] == alone(demo_tokenizer, item, window=WINDOW)


@pytest.mark.parametrize("only", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_prefix_is_found_by_the_end_of_its_window(demo_tokenizer: Tokenizer, only: bool, asynchronous: bool) -> None:
    """A conversation of many windows goes on where it ended, with the null block where the window is past; so does another question after
    the same beginning, since blocks that a row has left stay until others need them. (One step ahead, the row leaves some before they have
    been read, which are then lost.)"""
    options = {"only": only, "asynchronous": asynchronous}
    one = windowed(demo_tokenizer, **options)
    first = tuple(n % 11 for n in range(200))
    answer, cached = ask(one, request(first, 30))
    assert cached == 0
    second = (*first, *answer, 5, 6, 7)
    turns = len(one.turns)
    again, cached = ask(one, request(second, 20))
    assert cached == 228 and again == alone(demo_tokenizer, request(second, 20), window=WINDOW, only=only)
    (sent,) = [item for turn in one.turns[turns:] if isinstance(turn.launch, Prefill) for item in turn.launch.requests]
    table = sent.request.blocks[-1]
    assert table[:55] == (NULL_BLOCK,) * 55 and NULL_BLOCK not in table[55:]
    other = (*first[:120], 9, 9, 9)
    found, cached = ask(one, request(other, 20))
    assert cached == (112 if asynchronous else 120)
    assert found == alone(demo_tokenizer, request(other, 20), window=WINDOW, only=only)


def test_a_prefix_whose_window_is_gone_is_computed_again(demo_tokenizer: Tokenizer) -> None:
    """The other group still has the whole prefix: the deepest point at which every window is whole is found, here none."""
    one = windowed(demo_tokenizer, window_blocks=ENOUGH)
    first = tuple(n % 11 for n in range(200))
    ask(one, request(first, 4))
    ask(one, request((9,) * 100, 4))
    assert one.scheduler.memory.indexes[0].idle > 60
    found, cached = ask(one, request((*first, 1, 2), 8))
    assert cached == 0 and found == alone(demo_tokenizer, request((*first, 1, 2), 8), window=WINDOW)


def test_a_lost_shard_and_preemption_start_rows_anew(demo_tokenizer: Tokenizer) -> None:
    """Rows of many windows are continued from their tokens on a new shard; the old one's prefixes are forgotten in every group."""
    one = windowed(demo_tokenizer, window_blocks=3 * ENOUGH)
    items = [request(tuple((n * k) % 13 for n in range(70)), 40, seed=k) for k in range(1, 5)]
    keys = [one.scheduler.add(item) for item in items]
    for _ in range(30):
        one.turn()
    fresh = windowed(demo_tokenizer, window_blocks=3 * ENOUGH)
    one.server, one.session, one.answers = fresh.server, fresh.session, fresh.answers
    one.take(one.scheduler.restart("it was unplugged"))
    assert not any(index.entries for index in one.scheduler.memory.indexes)
    one.run()
    for key, item in zip(keys, items, strict=True):
        assert one.tokens[key] == alone(demo_tokenizer, item, window=WINDOW)
    check_empty(one)


def test_a_window_too_small_for_a_step_limits_rows(demo_tokenizer: Tokenizer) -> None:
    """With fewer blocks than a window and a step take, rows are refused that might never end."""
    one = windowed(demo_tokenizer, window_blocks=ENOUGH - 1)
    assert one.scheduler.limits.max_total_tokens == (ENOUGH - 1) * 4
    assert windowed(demo_tokenizer, window_blocks=ENOUGH).scheduler.limits.max_total_tokens == PLAN.max_row_tokens
    assert one.scheduler._capacity.groups[-1].kind is CacheKind.WINDOW
