"""Warm-up of a shard, with validation of its capabilities and its capacity."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from tgi_core.backend import BackendBug, BackendError, CacheKind, Capabilities, Capacity, Progress
from tgi_core.client.base import Plan, ReadyShard, ShardClient
from tgi_core.errors import StartupError
from tgi_core.wire.types import ShardInfo

_MANY = 1 << 31
_MOST_BLOCKS = 1 << 26
"""Maximum number of blocks. The scheduler keeps a number per block: this many take 3 GiB and, at 16 tokens each, hold 10^9
tokens."""
_MOST_ROWS = 1 << 20
_MOST_IN_FLIGHT = 64

Bound = tuple[str, int, int, int]
"""A name, its value, and the minimum and maximum allowed."""


async def warm_up(shard: ShardClient, info: ShardInfo, plan: Plan, progress: Progress) -> ReadyShard:
    """Warm up a shard. Raises StartupError, also for an implausible capacity; the caller must then close the shard."""
    try:
        _check(_of_capabilities(info.capabilities))
        capacity = await shard.warmup(plan(info.capabilities), progress)
        if not capacity.groups:
            raise BackendBug("it promises no cache")
        _check(_of_capacity(info.capabilities, capacity))
    except BackendError as error:
        raise StartupError(f"backend {info.backend}: {error}") from error
    return ReadyShard(shard, info, capacity)


def _check(bounds: Iterable[Bound]) -> None:
    for what, value, least, most in bounds:
        if not least <= value <= most:
            raise BackendBug(f"it promises {what} {value}; from {least} to {most} make sense")


def _of_capabilities(can: Capabilities) -> Iterable[Bound]:
    yield "vocab_size", can.vocab_size, 1, _MANY
    yield "max_positions", can.max_positions, 1, 1 << 62
    for size in can.block_sizes:
        yield "a block size of", size, 1, _MANY


def _of_capacity(can: Capabilities, capacity: Capacity) -> Iterable[Bound]:
    for group in capacity.groups:
        whole_rows = group.kind is CacheKind.FULL and not can.block_sizes
        yield "block_size", group.block_size, capacity.max_row_tokens if whole_rows else 1, _MANY
        yield "num_blocks", group.num_blocks, 1, _MOST_BLOCKS
        yield "a window of", 1 if group.window is None else group.window, 1, _MANY
    yield "max_rows", capacity.max_rows, 1, _MOST_ROWS
    yield "max_row_tokens", capacity.max_row_tokens, 2, 1 << 62
    yield "max_step_tokens", capacity.max_step_tokens, 1, 1 << 62
    yield "max_prefill_rows", capacity.max_prefill_rows, 1, 1 << 62
    yield "in_flight", capacity.in_flight, 1, _MOST_IN_FLIGHT
    yield "draft", capacity.draft, 0, _MANY
    for less, size in pairwise((0, *capacity.takes)):
        yield "a take of", size, less + 1, capacity.max_step_tokens
