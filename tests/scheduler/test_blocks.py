"""Blocks are conserved: none is lost, none is handed out twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tgi_core.backend import CacheGroup, CacheKind, Capacity, Sampling
from tgi_core.blocks import BlockPool, CacheBlocks
from tgi_core.scheduler import GenerationRequest
from tgi_core.scheduler.types import Limits
from tgi_core.wire.types import Stopping

TOTAL = 12


class PoolMachine(RuleBasedStateMachine):
    """Allocates and releases at will."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL)
        self.held: list[int] = []

    @rule(count=st.integers(0, TOTAL + 3))
    def allocate(self, count: int) -> None:
        """All or nothing."""
        if count > self.pool.free:
            with pytest.raises(ValueError, match="free"):
                self.pool.allocate(count)
            return
        got = self.pool.allocate(count)
        assert len(got) == count and not set(got) & set(self.held)
        self.held += got

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Any of those that are held."""
        blocks = data.draw(st.lists(st.sampled_from(self.held), unique=True))
        self.pool.release(blocks)
        self.held = [block for block in self.held if block not in blocks]

    @rule(block=st.integers(-1, TOTAL + 2))
    def release_a_stranger(self, block: int) -> None:
        """A block that is not in use cannot be given back."""
        if block not in self.held:
            with pytest.raises(ValueError, match="not in use"):
                self.pool.release([block])

    @invariant()
    def conserved(self) -> None:
        """Free and used add up, and ids are 1…TOTAL."""
        assert self.pool.free + len(self.held) == TOTAL
        assert all(1 <= block <= TOTAL for block in self.held)


TestPool = PoolMachine.TestCase

kinds = st.sampled_from([CacheKind.FULL, CacheKind.WINDOW])
groups = st.lists(st.builds(CacheGroup, kinds, st.sampled_from([1, 4, 16]), st.integers(1, 40)), min_size=1, max_size=3).map(
    tuple
)


@given(groups, st.integers(0, 200), st.integers(0, 200))
def test_tables_cover_positions(cache: tuple[CacheGroup, ...], first: int, more: int) -> None:
    """A row that grows gets, in each group, just the blocks that cover its positions; groups for states and for an encoder's
    output give one block for good."""
    cache = (*cache, CacheGroup(CacheKind.STATE, 1, 3), CacheGroup(CacheKind.CROSS, 16, 3))
    blocks = CacheBlocks(cache)
    tables: tuple[list[int], ...] = tuple([] for _ in cache)
    for positions in (first, first + more):
        counts = blocks.missing(tables, positions)
        if not blocks.fits(counts):
            break
        for table, got in zip(tables, blocks.allocate(counts), strict=True):
            table.extend(got)
        assert [len(table) for table in tables[:-2]] == [-(-positions // group.block_size) for group in cache[:-2]]
        assert [len(table) for table in tables[-2:]] == [1, 1]
    blocks.release(tables)
    assert blocks.fits(tuple(group.num_blocks for group in cache))


@given(groups, st.integers(1, 3), st.integers(0, 40))
def test_states_need_nothing_spare(cache: tuple[CacheGroup, ...], slots: int, spare: int) -> None:
    """A row never grows in a state group: its last slot may be taken while blocks for growth are kept back, and how full the cache is
    depends on the other groups."""
    blocks, without = CacheBlocks((*cache, CacheGroup(CacheKind.STATE, 1, slots))), CacheBlocks(cache)
    first = blocks.missing(tuple([] for _ in range(len(cache) + 1)), 1)
    assert blocks.fits((*first[:-1], slots), spare) == without.fits(first[:-1], spare)
    assert not blocks.fits((*first[:-1], slots + 1), spare)
    assert (blocks.free, blocks.total) == (without.free, without.total)


def test_an_encoder_limits_prompts_and_answers_apart() -> None:
    """With an encoder, a prompt and an answer each have a limit, a row needs one block however long it is, and as many rows run as there
    are blocks."""
    cache = (CacheGroup(CacheKind.CROSS, 100, 3),)
    capacity, blocks = Capacity(cache, 3, 140, 200, 3), CacheBlocks(cache)
    limits = Limits.of(capacity, blocks.max_row_tokens, blocks.max_prompt_tokens, chunking=False)
    assert limits == Limits(max_input_tokens=100, max_total_tokens=140, max_new_tokens=40)
    assert (limits.room(10), limits.room(120)) == (40, 20)
    with pytest.raises(ValueError, match="the answer may have 41 tokens; the maximum is 40"):
        limits.check(GenerationRequest.of((5,) * 10, Sampling(), Stopping(41)))
    assert blocks.missing(([],), 140) == (1,) and blocks.missing(([1],), 140) == (0,)
    assert blocks.stride >= capacity.max_row_tokens
    without = (CacheGroup(CacheKind.FULL, 10, 30),)
    plain = Limits.of(Capacity(without, 3, 140, 200, 3), 300, CacheBlocks(without).max_prompt_tokens, chunking=True)
    assert plain == Limits(max_input_tokens=139, max_total_tokens=140) and plain.room(10) == 130
    assert Limits.least([limits, plain]) == limits
