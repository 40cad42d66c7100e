"""The scheduler on the reference backend: nobody's text depends on anybody else, and nothing leaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.device import Device, Script, alone, device, filters, play, request
from tgi_core.backend import CapacityExceeded, DeviceLost, Feature, Mixing, OutOfMemory, WarmupPlan
from tgi_core.scheduler import GenerationFailed
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import Decode, Filter, Prefill

SMALL = WarmupPlan(max_rows=4, max_row_tokens=48, max_step_tokens=16, num_blocks=24, block_size=4)

prompts = st.lists(st.integers(0, 200), min_size=1, max_size=30).map(tuple)
requests = st.builds(request, prompts, st.integers(1, 18), st.none() | st.integers(0, 2**64 - 1))
arrivals = st.lists(st.tuples(st.integers(0, 6), requests, st.none() | st.integers(0, 12)), min_size=1, max_size=10)


@pytest.mark.parametrize("asynchronous", [True, False])
@given(script=arrivals)
@settings(max_examples=60, deadline=None)
def test_everyone_gets_what_they_would_get_alone(demo_tokenizer: Tokenizer, asynchronous: bool, script: Script) -> None:
    """Batching, chunking, growth, preemption and leaving mates change no token; every block comes back."""
    one = device(demo_tokenizer, SMALL, asynchronous=asynchronous)
    wanted, left = play(one, script)
    for key, item in wanted.items():
        expected = alone(demo_tokenizer, item)
        got = one.tokens.get(key, [])
        assert got == (expected[: len(got)] if key in left else expected)
    assert one.scheduler.snapshot.blocks_free == one.scheduler.snapshot.blocks_total == 24
    assert one.scheduler.snapshot.running == one.scheduler.snapshot.queued == 0


@given(script=arrivals)
@settings(max_examples=30, deadline=None)
def test_promises_are_kept(demo_tokenizer: Tokenizer, script: Script) -> None:
    """No turn asks for more than the capacity: the shard refuses nothing."""
    one = device(demo_tokenizer, SMALL)
    refusals = []
    exchange = one.server.exchange
    one.server.exchange = lambda turn: refusals.append(exchange(turn)) or refusals[-1]  # type: ignore[method-assign, func-returns-value]
    play(one, script)
    assert all(result.refused is None for result in refusals)


def test_two_steps_are_in_flight(demo_tokenizer: Tokenizer) -> None:
    """With in_flight 2 the second step is launched before the first is read."""
    one = device(demo_tokenizer)
    one.scheduler.add(request((1, 2, 3), 5))
    first, second = one.turn(), one.turn()
    assert isinstance(first.launch, Prefill) and first.read is None
    assert isinstance(second.launch, Decode) and second.read == first.launch.step


def test_lock_step_reads_at_once(demo_tokenizer: Tokenizer) -> None:
    """With in_flight 1 each turn reads the step that it launches."""
    one = device(demo_tokenizer, asynchronous=False)
    one.scheduler.add(request((1, 2, 3), 5))
    turn = one.turn()
    assert turn.launch is not None and turn.read == turn.launch.step


def test_nothing_runs_beyond_the_last_token(demo_tokenizer: Tokenizer) -> None:
    """A request that ends by length costs no extra step, even one step ahead."""
    steps: list[int] = []
    one = device(demo_tokenizer, on_step=lambda work: steps.append(sum(item.take for item in work)))
    one.scheduler.add(request((1, 2, 3), 4))
    one.run()
    assert steps == [3, 1, 1, 1]


def test_one_who_leaves_is_in_no_later_step(demo_tokenizer: Tokenizer) -> None:
    """After cancel the next turn filters the row before it launches anything, and its blocks are free at once."""
    seen: list[set[int]] = []
    one = device(demo_tokenizer, on_step=lambda work: seen.append({item.row.request.id for item in work}))
    stays, leaves = one.scheduler.add(request((1, 2), 40)), one.scheduler.add(request((3, 4), 40))
    for _ in range(4):
        one.turn()
    launched = len(one.turns)
    one.scheduler.cancel(leaves)
    assert one.scheduler.snapshot.blocks_free == one.scheduler.snapshot.blocks_total - 1
    turn = one.turn()
    assert [verb.keep for verb in turn.bookkeeping if isinstance(verb, Filter)] == [(1,)]
    one.run()
    assert all(rows == {1} for rows in seen[launched:])
    assert one.tokens[stays] == alone(demo_tokenizer, request((1, 2), 40))


def test_those_who_stay_are_named_in_order(demo_tokenizer: Tokenizer) -> None:
    """A filter names rows in the order of their batch: TGI's shards put them into the order of the names, ours leave them."""
    one = device(demo_tokenizer)
    for _ in range(61):  # numbers large enough for a set to mix them up
        one.scheduler.add(request((1,), 1))
        one.run()
    keys = [one.scheduler.add(request((1, 2), 40)) for _ in range(4)]
    for _ in range(6):
        one.turn()
    one.scheduler.cancel(keys[1])
    [verb] = filters(one.turn())
    assert len(verb.keep) == 3 and list(verb.keep) == sorted(verb.keep)


def test_a_long_prompt_does_not_stop_the_others(demo_tokenizer: Tokenizer) -> None:
    """A prompt longer than a step runs in chunks, while rows that decode get a token in every step."""
    one = device(demo_tokenizer, WarmupPlan(max_row_tokens=256, max_step_tokens=16))
    short = one.scheduler.add(request((1, 2), 30))
    one.turn()
    one.turn()
    one.scheduler.add(request(tuple(range(100)), 3))
    before = len(one.tokens[short])
    for _ in range(6):
        one.turn()
    assert len(one.tokens[short]) == before + 6
    one.run()


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("failing", [1, 2, 3, 5])
def test_a_step_that_runs_out_of_memory_loses_nothing(demo_tokenizer: Tokenizer, asynchronous: bool, failing: int) -> None:
    """An error from rows kills the step's batch; its requests continue from their tokens and end as if nothing had been."""
    faults = {failing: OutOfMemory("the device is full")}
    one = device(demo_tokenizer, WarmupPlan(max_row_tokens=256), asynchronous=asynchronous, faults=faults)
    wanted = {one.scheduler.add(item): item for item in (request((1, 2), 9), request((3,), 9, seed=5), request((4, 5, 6), 9))}
    one.run()
    assert one.tokens == {key: alone(demo_tokenizer, item) for key, item in wanted.items()}


def refuse(one: Device, error: Exception, when: Callable[[int], bool]) -> None:
    """Make the session's verbs raise, by count of calls."""
    calls = 0
    for verb in ("prefill", "decode"):
        original = getattr(one.session._open_tracker, verb)

        def refusing(*arguments: object, original: Callable[..., object] = original) -> object:
            nonlocal calls
            calls += 1
            if when(calls):
                raise error
            return original(*arguments)

        setattr(one.session._open_tracker, verb, refusing)


@pytest.mark.parametrize("error", [OutOfMemory("full"), CapacityExceeded("too much")])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_refused_step_loses_nothing(demo_tokenizer: Tokenizer, asynchronous: bool, error: Exception) -> None:
    """An error from a verb changed nothing: the step is planned again, smaller, and all tokens come out right."""
    one = device(demo_tokenizer, WarmupPlan(max_row_tokens=256), asynchronous=asynchronous)
    refuse(one, error, lambda call: call in (1, 4, 6))
    wanted = {one.scheduler.add(item): item for item in (request((1, 2), 9), request((3,), 9, seed=5), request((4, 5, 6), 9))}
    one.run()
    assert one.tokens == {key: alone(demo_tokenizer, item) for key, item in wanted.items()}
    assert one.scheduler.snapshot.blocks_free == one.scheduler.snapshot.blocks_total


def test_a_request_that_never_fits_memory_fails_by_itself(demo_tokenizer: Tokenizer) -> None:
    """Out of memory again and again with one row alone ends that request with the reason, and the scheduler goes on."""
    one = device(demo_tokenizer)
    refuse(one, OutOfMemory("full"), lambda call: call < 3)
    key = one.scheduler.add(request((1, 2), 9))
    one.run()
    assert str(one.ended[key].error) == "full"
    other = one.scheduler.add(request((1, 2), 9))
    one.run()
    assert one.tokens[other] == alone(demo_tokenizer, request((1, 2), 9))


def test_a_lost_device_ends_everything_clearly(demo_tokenizer: Tokenizer) -> None:
    """Device lost, and nobody replaces it: every request gets the reason, and no block stays taken."""
    one = device(demo_tokenizer, faults={2: DeviceLost("gone")})
    keys = [one.scheduler.add(request((1, 2), 9)) for _ in range(3)]
    one.run()
    assert one.scheduler.lost is not None and not one.ended
    one.take(one.scheduler.fail_all(GenerationFailed(str(one.scheduler.lost))))
    assert {str(one.ended[key].error) for key in keys} == {"gone"}
    assert one.scheduler.idle
    assert one.scheduler.snapshot.blocks_free == one.scheduler.snapshot.blocks_total


def test_a_request_that_cannot_fit_is_turned_away(demo_tokenizer: Tokenizer) -> None:
    """A request longer than the whole cache raises at once."""
    one = device(demo_tokenizer, SMALL)
    with pytest.raises(ValueError, match="the maximum is 48"):
        one.scheduler.add(request(tuple(range(40)), 9))


def test_cancelling_while_a_refused_turn_is_under_way(demo_tokenizer: Tokenizer) -> None:
    """A request that leaves between plan and a refusing answer gives its blocks back once."""
    one = device(demo_tokenizer)
    refuse(one, OutOfMemory("full"), lambda call: call == 1)
    stays, leaves = one.scheduler.add(request((1, 2), 5)), one.scheduler.add(request((3, 4), 5))
    turn = one.scheduler.plan()
    result = one.exchange(turn)
    one.scheduler.cancel(leaves)
    one.scheduler.complete(result)
    one.run()
    assert leaves not in one.ended and one.scheduler.snapshot.blocks_free == one.scheduler.snapshot.blocks_total
    assert stays in one.ended


@pytest.mark.parametrize("mixing", [Mixing.NONE, Mixing.EAGER])
@pytest.mark.parametrize("without", [frozenset(), frozenset({Feature.CHUNKED_PREFILL})])
@given(script=arrivals)
@settings(max_examples=25, deadline=None)
def test_devices_that_can_do_less(
    demo_tokenizer: Tokenizer,
    without: frozenset[Feature],
    mixing: Mixing,
    script: Script,
) -> None:
    """Without chunking, or without prefill and decode in one step, everyone still gets what they would get alone."""
    plan = WarmupPlan(max_rows=4, max_row_tokens=48, max_step_tokens=48, num_blocks=24, block_size=4)
    one = device(demo_tokenizer, plan, without=without, mixing=mixing)
    wanted, left = play(one, script)
    for key, item in wanted.items():
        expected = alone(demo_tokenizer, item)
        got = one.tokens.get(key, [])
        assert got == (expected[: len(got)] if key in left else expected)
    assert one.scheduler.snapshot.blocks_free == one.scheduler.snapshot.blocks_total


def test_a_whole_prompt_is_admitted_after_a_fault(demo_tokenizer: Tokenizer) -> None:
    """Where a prompt cannot be cut, steps made small by a fault do not keep it waiting for ever."""
    one = device(demo_tokenizer, without=frozenset({Feature.CHUNKED_PREFILL}))
    refuse(one, OutOfMemory("full"), lambda call: call == 1)
    item = request(tuple(range(100)), 5)
    key = one.scheduler.add(item)
    one.run(limit=100)
    assert one.tokens[key] == alone(demo_tokenizer, item)


def test_slots_can_all_be_used(demo_tokenizer: Tokenizer) -> None:
    """Where a block holds a whole row, no block is kept back for growth: as many rows run as there are blocks."""
    plan = WarmupPlan(max_rows=8, max_row_tokens=64, num_blocks=8, block_size=64)
    one = device(demo_tokenizer, plan)
    for _ in range(8):
        one.scheduler.add(request((1, 2), 5))
    one.turn()
    assert one.scheduler.snapshot.running == 8


def test_a_token_that_does_not_exist_is_refused(demo_tokenizer: Tokenizer) -> None:
    """A prompt with an id outside the vocabulary fails by itself; the shard lives."""
    one = device(demo_tokenizer)
    bad, good = one.scheduler.add(request((2**40,), 5)), one.scheduler.add(request((1, 2), 5))
    one.run()
    assert one.ended[bad].error is not None
    assert one.tokens[good] == alone(demo_tokenizer, request((1, 2), 5))
