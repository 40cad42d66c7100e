"""Which replica is chosen, by the placement alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tgi_core.replicas.holders import Holders, SharedPrefixIndex
from tgi_core.replicas.load_order import LoadOrder
from tgi_core.replicas.placement import Choice, Placement

BLOCK = 16


def keys(count: int, name: str = "k") -> list[bytes]:
    """Keys of the blocks of one text."""
    return [f"{name}{place}".encode() for place in range(count)]


def placement(count: int, free: int = 1000) -> Placement:
    """A placement of so many idle replicas."""
    made = Placement(BLOCK)
    for _ in range(count):
        made.add(lambda: free)
    return made


def hold(made: Placement, replica: int, held: list[bytes]) -> None:
    """Let a replica hold blocks."""
    for key in held:
        made.holders.add(key, 1 << replica)


def test_the_longest_prefix_wins() -> None:
    """Of idle replicas, the one that holds most of the prompt; the hit is told in tokens."""
    made, text = placement(4), keys(10)
    hold(made, 1, text[:3])
    hold(made, 2, text[:8])
    assert made.choose(170, text, 20) == Choice(2, 8 * BLOCK)
    assert made.choose(170, keys(10, "other"), 20) == Choice(0, 0)


def test_a_busy_holder_loses_when_computing_again_is_cheaper() -> None:
    """A prefix of ten blocks is worth 160 tokens of other requests' work, and no more."""
    made, text = placement(2), keys(10)
    hold(made, 0, text)
    made.place(Choice(0, 0), 150, 0)
    assert made.choose(170, text, 20) == Choice(0, 160)
    made.place(Choice(0, 0), 20, 0)
    assert made.choose(170, text, 20) == Choice(1, 0)


def test_what_starts_and_what_ends_is_no_work_any_more() -> None:
    """A prompt counts until it starts, half of an answer until it ends; after that, nothing of it is left."""
    made = placement(1)
    charge = made.place(Choice(0, 32), 100, 50)
    assert made.work(0) == 68 + 25
    made.started(charge)
    assert made.work(0) == 25
    made.ended(charge, 50)
    made.ended(charge)
    assert made.work(0) == 0


def test_blocks_that_are_not_free_are_waited_for() -> None:
    """Of two replicas with the same work, the one that has room; a prefix is not worth waiting for as many blocks."""
    free = [2, 1000]
    made = Placement(BLOCK)
    for blocks in free:
        made.add(lambda blocks=blocks: blocks)  # type: ignore[misc]
    assert made.choose(160, [], 20) == Choice(1, 0)


def test_a_slow_replica_gets_less() -> None:
    """One whose steps take twice as long as the others' counts each token twice; a tenth more is noise."""
    made = placement(3)
    made.compare_paces({0: {4: 0.02}, 1: {3: 0.01, 4: 0.01}, 2: {4: 0.011}})
    given = [0, 0, 0]
    for _ in range(500):
        choice = made.choose(100, [], 10)
        assert choice is not None
        made.place(choice, 100, 10)
        given[choice.replica] += 1
    assert sum(given) == 500 and given == pytest.approx([100, 200, 200], abs=2)


def test_replicas_that_are_down_get_nothing() -> None:
    """Neither the holder of the prefix nor the least busy one; none if all are down or barred."""
    made, text = placement(3), keys(4)
    hold(made, 0, text)
    made.set_up(0, False)
    assert made.choose(65, text, 8) == Choice(1, 0) and made.up == 2
    assert made.choose(65, text, 8, barred=0b110) is None
    made.set_up(0, True)
    assert made.choose(65, text, 8) == Choice(0, 64)


def test_idle_replicas_help_the_busiest() -> None:
    """A waiting request moves if it is done earlier elsewhere; what the other replica holds of its prompt counts."""
    made, text = placement(2), keys(6)
    first, second = (made.place(Choice(0, 0), 100, 10) for _ in range(2))
    assert made.busiest() == 0
    assert made.worth_moving(second, 1, 100, text) == Choice(1, 0)
    made.place(Choice(1, 0), 90, 10)
    assert made.worth_moving(second, 1, 100, text) == Choice(1, 0)
    made.started(first)
    assert made.worth_moving(second, 1, 100, text) is None
    hold(made, 1, text)
    assert made.worth_moving(second, 1, 100, text) == Choice(1, 96)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 11)), max_size=60),
    st.lists(st.tuples(st.integers(1, 400), st.integers(0, 12)), min_size=1, max_size=30),
)
def test_work_is_shared_whatever_replicas_hold(held: list[tuple[int, int]], prompts: list[tuple[int, int]]) -> None:
    """The chosen one is never busier than the least busy by more than its hit is worth."""
    made, text = placement(12), keys(25)
    for blocks, replica in held:
        hold(made, replica, text[:blocks])
    for tokens, blocks in prompts:
        used = text[: min(blocks, (tokens - 1) // BLOCK)]
        choice = made.choose(tokens, used, 16)
        assert choice is not None and choice.hit <= len(used) * BLOCK
        assert made.work(choice.replica) - choice.hit <= min(made.work(each) for each in range(12))
        made.place(choice, tokens, 16)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12), st.booleans()), max_size=40))
def test_the_holders_are_those_whose_indexes_have_the_block(changes: list[tuple[int, int, bool]]) -> None:
    """Whatever enters and is evicted: the bits of each key are the indexes that have it, and `longest` is what a search would find."""
    holders = Holders()
    indexes = [SharedPrefixIndex(BLOCK, holders, number) for number in range(4)]
    text = keys(12)
    for number, blocks, evicts in changes:
        index = indexes[number]
        entries = index.find(text[:blocks])
        entries += [entry for key in text[len(entries) : blocks] if (entry := index.add(key, 0))]
        for entry in reversed(entries):
            index.drop(entry)
        if evicts and index.idle:
            index.evict()
    for key in text:
        assert holders.of(key) == sum(1 << number for number, index in enumerate(indexes) if key in index.entries)
    for number, index in enumerate(indexes):
        found = index.find(text)
        assert holders.longest(text, 1 << number)[0] == len(found)
    assert len(holders) <= len(text)


@given(st.lists(st.tuples(st.integers(0, 49), st.floats(0, 1e6)), max_size=150), st.lists(st.integers(0, 49), max_size=20))
def test_the_order_is_that_of_a_sort(changes: list[tuple[int, float]], removed: list[int]) -> None:
    """Whatever joins, moves and leaves: the replicas by work, equally busy ones by number, and the bits of the first 32."""
    order, work = LoadOrder(), {}
    for replica, tokens in changes:
        order.put(replica, tokens)
        work[replica] = int(tokens * 16)
    for replica in {*removed} & {*work}:
        order.remove(replica)
        del work[replica]
    expected = sorted(work, key=lambda each: (work[each], each))
    assert list(order) == expected and len(order) == len(expected)
    assert order.least_busy == sum(1 << each for each in expected[:32])
    if expected:
        assert (order.first, order.last) == (expected[0], expected[-1])


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_longest_prefix_is_found(held: int, count: int) -> None:
    """For any two lengths of a prompt and of what is held of it."""
    holders, text = Holders(), keys(60)
    for key in text[:held]:
        holders.add(key, 0b100)
    depth = min(held, count)
    assert holders.longest(text[:count], 0b111) == (depth, 0b100 if depth else 0)
    assert holders.longest(text[:count], 0b011) == (0, 0)
