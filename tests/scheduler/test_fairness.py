"""Turns between clients: whoever asks for more than others waits for longer than they do."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.checks import check_books
from tests.scheduler.device import Device, device, request, scheduled
from tgi_core.backend import WarmupPlan
from tgi_core.scheduler import GenerationRequest, Overloaded, SchedulerOptions
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import Prefill

floods = st.lists(
    st.builds(request, st.integers(1, 20).map(lambda size: (1,) * size), st.integers(1, 12), priority=st.integers(-1, 1)),
    min_size=8,
    max_size=40,
)


def of(client: str, wanted: GenerationRequest) -> GenerationRequest:
    """The same, asked by a client."""
    return scheduled(wanted, client=client)


def brought(one: Device, since: int) -> list[tuple[int, ...]]:
    """The prompts that came to the shard after so many turns, in order."""
    return [
        sent.request.tokens for turn in one.turns[since:] if isinstance(turn.launch, Prefill) for sent in turn.launch.requests
    ]


class Clock:
    """A tenth of a second passes at each look."""

    def __init__(self) -> None:
        self._ticks = count()

    def __call__(self) -> float:
        return next(self._ticks) / 10


def crowded(tokenizer: Tokenizer, rows: int, options: SchedulerOptions | None = None) -> Device:
    """A device with few rows, and blocks for all of them."""
    return device(tokenizer, WarmupPlan(max_rows=rows, max_row_tokens=64), options, Clock())


@given(flood=floods, rows=st.integers(1, 4), turns=st.integers(0, 30), wish=st.integers(0, 1))
@settings(max_examples=30, deadline=None)
def test_a_polite_client_is_next(
    demo_tokenizer: Tokenizer, flood: list[GenerationRequest], rows: int, turns: int, wish: int
) -> None:
    """However many requests of one client wait, whatever their length and priority: when another client's comes, at most one of them
    begins before it."""
    one = crowded(demo_tokenizer, rows)
    for item in flood:
        one.scheduler.add(of("flood", item))
    for _ in range(turns):
        one.turn()
    key = one.scheduler.add(of("polite", request((2, 3), 4, priority=wish)))
    while key not in one.tokens:
        one.turn()
        check_books(one.scheduler)
    assert brought(one, turns).index((2, 3)) <= 1
    one.run()
    assert len(one.ended) == len(flood) + 1


@given(lengths=st.tuples(st.integers(1, 30), st.integers(1, 30)), answers=st.tuples(st.integers(1, 30), st.integers(1, 30)))
@settings(max_examples=15, deadline=None)
def test_all_who_wait_get_as_many_tokens(demo_tokenizer: Tokenizer, lengths: tuple[int, int], answers: tuple[int, int]) -> None:
    """While two clients have requests that wait, neither gets more tokens than the other and a few requests' worth besides."""
    one = crowded(demo_tokenizer, 2)
    owner: dict[int, int] = {}
    for _ in range(20):
        for client in (0, 1):
            prompt = tuple(range(lengths[client]))
            owner[one.scheduler.add(of(str(client), request(prompt, answers[client])))] = client
    spent = [0, 0]
    while {item.request.scheduling.client for item in one.scheduler.queue} == {"0", "1"}:
        one.turn()
    for key in one.ended:
        spent[owner[key]] += lengths[owner[key]] + answers[owner[key]]
    largest = max(lengths[0] + answers[0], lengths[1] + answers[1])
    assert abs(spent[0] - spent[1]) <= 5 * largest


def test_newcomers_starve_nobody(demo_tokenizer: Tokenizer) -> None:
    """With new clients all the time, each with one request, one that has many gets on all the same; nobody is remembered."""
    one = crowded(demo_tokenizer, 1)
    own = [one.scheduler.add(of("many", request((1, 2), 2))) for _ in range(20)]
    for number in range(600):
        if one.scheduler.snapshot.queued < 3 + len(own) - sum(key in one.ended for key in own):
            one.scheduler.add(of(f"address {number}", request((1,), 1)))
        one.turn()
    assert all(key in one.ended for key in own)
    one.run()
    assert one.scheduler.queue.clients == 0


def test_a_million_addresses_take_no_memory(demo_tokenizer: Tokenizer) -> None:
    """Of clients whose requests have ended, or were refused, nothing is kept."""
    one = crowded(demo_tokenizer, 4, SchedulerOptions(max_queued_requests=8))
    refused = 0
    for number in range(20_000):
        try:
            one.scheduler.add(of(f"address {number}", request((1,), 1)))
        except Overloaded:
            refused += 1
        if number % 100 == 0:
            one.turn()
            assert one.scheduler.queue.clients <= 8 + 2 * 4
    assert refused > 10_000


@pytest.mark.parametrize("urgent", [True, False])
def test_urgency_is_the_operators_to_give(demo_tokenizer: Tokenizer, urgent: bool) -> None:
    """`high` puts a request before its client's own; before another client's only when the operator trusts whoever sends it."""
    one = crowded(demo_tokenizer, 1)
    one.scheduler.add(of("a", request((1,), 4)))
    one.turn()
    first = [one.scheduler.add(of("a", request((1,), 2))) for _ in range(3)]
    other = [one.scheduler.add(of("b", request((1,), 2))) for _ in range(3)]
    high = [one.scheduler.add(of("a", request((1,), 2, priority=1, urgent=urgent))) for _ in range(3)]
    one.run()
    ended = list(one.ended)
    assert max(map(ended.index, high)) < min(map(ended.index, first))
    assert (max(map(ended.index, high)) < min(map(ended.index, other))) is urgent


def test_low_waits_for_others_but_not_for_ever(demo_tokenizer: Tokenizer) -> None:
    """`low` goes after other clients' requests, until about --priority-ageing seconds' worth of those have gone."""
    one = crowded(demo_tokenizer, 1, SchedulerOptions(ageing_s=1.0))
    one.scheduler.add(of("a", request((1,), 4)))
    one.turn()
    low = one.scheduler.add(of("a", request((1,), 2, priority=-1)))
    for _ in range(600):
        one.scheduler.add(of("b", request((1,), 2)))
    one.run(20_000)
    place = list(one.ended).index(low)
    assert 10 < place < 500


@pytest.mark.parametrize("bounds", [{"max_queued_requests": 6}, {"max_queued_tokens": 24}])
def test_a_full_queue_has_room_for_others(demo_tokenizer: Tokenizer, bounds: dict[str, Any]) -> None:
    """Where one client's requests fill the queue its last ones make room for another's, and are told so, until both have as many."""
    one = crowded(demo_tokenizer, 1, SchedulerOptions(**bounds))
    flood = [one.scheduler.add(of("flood", request((1, 2, 3, 4), 2))) for _ in range(6)]
    with pytest.raises(Overloaded):
        one.scheduler.add(of("flood", request((1, 2, 3, 4), 2)))
    polite = [one.scheduler.add(of("polite", request((5, 6, 7, 8), 2))) for _ in range(3)]
    with pytest.raises(Overloaded):
        one.scheduler.add(of("polite", request((1, 2, 3, 4), 2)))
    one.run()
    told = [key for key, event in one.ended.items() if isinstance(event.error, Overloaded)]
    assert told == flood[:2:-1]
    assert [key in one.tokens for key in (*flood[:3], *polite)] == [True] * 6
