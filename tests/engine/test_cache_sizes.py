"""The blocks of both cache groups of a model with windows: they fit, rows fit into them, and Gemma 3 needs a fifth of what it did."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tests.scheduler.checks import check_books
from tests.scheduler.device import Device, quiet, request
from tgi_core.backend import NULL_BLOCK, CacheKind, Capacity, OutOfMemory, WarmupPlan
from tgi_core.backend.reference_windows import WindowedReferenceSession
from tgi_core.backend.session import Session
from tgi_core.blocks import CacheBlocks
from tgi_core.client.supervised import as_promised
from tgi_core.engine.attention.cache import LayerShape, PagedCache
from tgi_core.engine.cache_sizes import window_layers
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.memory import plan_capacity
from tgi_core.engine.models.shape import ModelShape
from tgi_core.scheduler import Scheduler
from tgi_core.server.model_server import ModelServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import ShardInfo

LENGTH, WINDOW, BLOCK = 32_768, 1024, 16
PERIOD = (WINDOW,) * 5 + (None,)
"""Windows of Gemma 3's layers, over and over."""


class Room:
    """A kit of a device with some free memory."""

    def __init__(self, free: int) -> None:
        self.free = free

    def free_bytes(self) -> int:
        """As much as was said."""
        return self.free

    def default_rows(self) -> int:
        """Of the CPU."""
        return 64

    def default_step_tokens(self) -> int:
        """Of the CPU."""
        return 2048


def planned(
    plan: WarmupPlan, windows: tuple[int | None, ...], free: int, positions: int = LENGTH, apart: bool = True, size: int = BLOCK
) -> Capacity:
    """The limits of a model with layers like these, with the free bytes behind weights and activations."""
    layers = tuple(LayerShape(1, 8, 8, window) for window in windows)
    shape = ModelShape(torch.bfloat16, 256, positions, 64, 64, 0)
    found = window_layers(layers, size, torch.bfloat16) if apart else None
    kit, block_bytes = cast(DeviceKit, Room(free)), PagedCache.block_bytes(layers, size, torch.bfloat16)
    return plan_capacity(plan, shape, kit, size, block_bytes, shares=(), windows=found)


def cache_bytes(capacity: Capacity) -> int:
    """Bytes of the KV cache."""
    return sum(item.num_bytes for item in capacity.memory if item.name == "kv cache")


def test_gemma_3_takes_a_fifth_of_the_memory() -> None:
    """64 rows of 32k, five layers with a window of 1,024 to one without: the whole cache has less than a fifth of the bytes that it has in
    one group; in the memory of 64 rows in one group, every row runs at its full length and 4/5 are left."""
    one = planned(WarmupPlan(), PERIOD, 1 << 40, apart=False)
    both = planned(WarmupPlan(), PERIOD, 1 << 40)
    assert [(group.kind, group.num_blocks) for group in both.groups] == [
        (CacheKind.FULL, 64 * LENGTH // BLOCK),
        (CacheKind.WINDOW, 64 * (WINDOW // BLOCK + 2) + 2048 // BLOCK),
    ]
    assert cache_bytes(both) / cache_bytes(one) == pytest.approx(0.1943, abs=1e-4)
    scarce = planned(WarmupPlan(), PERIOD, cache_bytes(one) // 5)
    assert scarce.groups == both.groups and scarce.max_row_tokens == LENGTH
    assert planned(WarmupPlan(), PERIOD, cache_bytes(one) // 5, apart=False).groups[0].num_blocks < one.groups[0].num_blocks / 4.9


def test_gemma_3_keeps_a_fifth_of_its_blocks(demo_tokenizer: Tokenizer) -> None:
    """A row of 32k tokens through the scheduler: of the layers' blocks it keeps less than a fifth of those that it would keep in one group,
    2,048 of the full layer and 65 of each other one."""
    session = Session(WindowedReferenceSession(demo_tokenizer.vocab_size, LENGTH, window=WINDOW), "reference")
    info = ShardInfo("toy", "reference", "none", "none", (1, 8), session.capabilities())
    server = ModelServer(session, demo_tokenizer, info)
    capacity = server.warmup(WarmupPlan(max_rows=1, max_row_tokens=LENGTH, num_blocks=LENGTH // BLOCK, block_size=BLOCK), quiet)
    one = Device(Scheduler(info.capabilities, capacity), server, cast(Any, session))
    one.scheduler.add(request(tuple(7 * place % 250 for place in range(LENGTH - 64)), 64))
    kept, most = (0, 0), 0
    while not one.scheduler.idle:
        one.turn()
        for row in one.scheduler.shard.rows.values():
            full, windowed = (len(table) - table.count(NULL_BLOCK) for table in row.tables)
            kept, most = (full, windowed), max(most, windowed)
    check_books(one.scheduler)
    assert kept == (2048, 65) and most <= (WINDOW + 2048) // BLOCK + 1
    before = len(PERIOD) * LENGTH // BLOCK
    now = sum(kept[1] if window else kept[0] for window in PERIOD)
    assert (now, before) == (2373, 12288) and now <= before / 5


plans = st.builds(
    WarmupPlan,
    max_rows=st.none() | st.integers(1, 40),
    max_row_tokens=st.none() | st.integers(2, 3000),
    max_step_tokens=st.none() | st.integers(1, 600),
    num_blocks=st.none() | st.none() | st.integers(2, 400),
    draft=st.integers(0, 4),
)
layouts = st.lists(st.none() | st.integers(1, 900), min_size=1, max_size=6).map(tuple)


@given(plans, layouts, st.integers(0, 1 << 22), st.sampled_from([16, 32]))
@example(WarmupPlan(), (None, None, None, 1), 471552, 16)  # what is left of the memory holds only blocks of the window
def test_what_is_promised_fits_and_holds_rows(plan: WarmupPlan, windows: tuple[int | None, ...], free: int, size: int) -> None:
    """The groups fit in memory, the longest row that is promised fits into them, and a restart that asks for the promise gets it again."""
    try:
        capacity = planned(plan, windows, free, 2048, size=size)
    except OutOfMemory:
        return
    assert cache_bytes(capacity) <= free
    blocks = CacheBlocks(capacity.groups, capacity.max_step_tokens)
    assert 0 < capacity.max_row_tokens <= blocks.max_row_tokens
    full = [group.num_blocks for group in capacity.groups if group.kind is CacheKind.FULL]
    assert all(group.num_blocks <= full[0] for group in capacity.groups if full)
    kinds = [group.kind for group in capacity.groups]
    assert kinds in ([CacheKind.FULL], [CacheKind.WINDOW], [CacheKind.FULL, CacheKind.WINDOW])
    again = as_promised(capacity, lambda capabilities: replace(plan, num_blocks=None))(cast(Any, None))
    assert planned(again, windows, free, 2048, size=size).groups == capacity.groups


@given(plans, layouts, st.integers(0, 1 << 22))
def test_windows_never_hold_fewer_rows(plan: WarmupPlan, windows: tuple[int | None, ...], free: int) -> None:
    """A plan that fits in one group fits in two, and where memory is scarce the group of all positions has at least as many blocks."""
    try:
        one = planned(plan, windows, free, 2048, apart=False)
    except OutOfMemory:
        return
    both = planned(plan, windows, free, 2048)
    assert both.groups[0].kind is CacheKind.WINDOW or both.groups[0].num_blocks >= one.groups[0].num_blocks
    assert both.max_row_tokens >= one.max_row_tokens


def test_who_takes_nothing_back_gets_one_group() -> None:
    """A router that knows of no windows asks for none, and gets the blocks of all layers at once."""
    found = planned(WarmupPlan(window_blocks=0), PERIOD, 1 << 40)
    assert found.groups == planned(WarmupPlan(), PERIOD, 1 << 40, apart=False).groups
