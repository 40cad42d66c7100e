"""The size of the KV cache: how many blocks fit in memory, and the limits that follow."""

from __future__ import annotations

from operator import itemgetter
from typing import Protocol

from tgi_core.backend import Capacity, Memory, OutOfMemory, WarmupPlan
from tgi_core.blocks import longest_row
from tgi_core.engine.cache_sizes import CacheSizes, WindowLayers
from tgi_core.engine.comparison import Agree
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.models.shape import ModelShape


class CacheBeside(Protocol):
    """A second cache with the blocks of a first one, such as a draft model's."""

    def block_bytes(self, block_size: int) -> int:
        """Bytes of a block."""

    def spare_bytes(self, rows: int, draft: int, step_tokens: int, block_size: int) -> int:
        """Bytes besides the blocks, for this many rows, drafts per row and tokens per step."""


def default_limits(plan: WarmupPlan, kit: DeviceKit) -> tuple[int, int]:
    """Rows and tokens per step to promise: the plan's, or else the device's defaults."""
    rows = plan.max_rows or kit.default_rows()
    return rows, max(plan.max_step_tokens or kit.default_step_tokens(), rows)


def check_room(weight_bytes: int, free_bytes: int) -> None:
    """Raises OutOfMemory if weights do not fit, on devices that hold all of them; called before they are read, which takes minutes."""
    if weight_bytes > free_bytes:
        raise OutOfMemory(
            f"weights of {weight_bytes:,} bytes: {free_bytes:,} are free; use a smaller --dtype, a quantized checkpoint, or more devices "
            "(--num-shard)"
        )


def plan_capacity(
    plan: WarmupPlan,
    shape: ModelShape,
    kit: DeviceKit,
    block_size: int,
    block_bytes: int,
    agree: Agree = int,
    shares: tuple[Memory, ...] | None = None,
    spare_bytes: int = 0,
    beside: CacheBeside | None = None,
    windows: WindowLayers | None = None,
) -> Capacity:
    """Limits for a paged cache. What the plan leaves open is what fits on every rank, at most what all rows could use.

    `shares` is the measured memory that steps need besides weights and cache; None estimates it. `spare_bytes` is what the cache takes
    besides its blocks, and `beside` another cache with as many blocks. `windows` are layers, among those of `block_bytes`, that get a group
    of their own if that saves memory. Raises OutOfMemory, with sizes, if not even one row of two blocks fits or the plan asks for more than
    is free.
    """
    rows, step_tokens = default_limits(plan, kit)
    if beside is not None:
        block_bytes += beside.block_bytes(block_size)
        spare_bytes += beside.spare_bytes(rows, plan.draft, step_tokens, block_size)
    if shares is None:
        shares = (Memory("activations", shape.activation_bytes(rows * (1 + plan.draft), step_tokens)),)
    free = kit.free_bytes() - shape.image_bytes - spare_bytes - sum(share.num_bytes for share in shares)
    row_tokens = min(plan.max_row_tokens or shape.max_positions, shape.max_positions)
    sizes = CacheSizes(plan, rows, row_tokens, step_tokens, block_size, block_bytes, windows)
    groups = sizes.groups(max(0, free), agree)
    num_bytes = sizes.num_bytes(groups)
    if agree(int(num_bytes <= max(0, free))) == 0 or any(group.num_blocks < min(2, sizes.useful) for group in groups):
        raise OutOfMemory(
            f"KV cache: {' and '.join(str(group.num_blocks or 2) for group in groups)} blocks of {block_size} tokens need "
            f"{num_bytes or 2 * block_bytes:,} bytes, and {max(0, free):,} are free after weights of {shape.weight_bytes:,} and "
            + " and ".join(f"{share.name} of {share.num_bytes:,}" for share in shares)
        )
    longest, short = min(((longest_row(group, step_tokens), group) for group in groups), key=itemgetter(0))
    if plan.max_row_tokens is not None and plan.max_row_tokens > longest:
        needed = sizes.needed(short, plan.max_row_tokens)
        raise OutOfMemory(f"KV cache: a row of {plan.max_row_tokens} tokens needs {needed} blocks, {short.num_blocks} fit")
    return Capacity(
        groups=groups,
        max_rows=rows,
        max_row_tokens=min(row_tokens, longest),
        max_step_tokens=step_tokens,
        max_prefill_rows=rows,
        draft=plan.draft,
        memory=(
            *shape.weights,
            Memory("kv cache", num_bytes),
            *shares,
            Memory("reserve", max(0, free + spare_bytes - num_bytes)),
        ),
    )


def coarse(count: int) -> int:
    """A number of blocks rounded down to its three leading bits, for devices whose programs depend on it: free memory differs a little at
    each start."""
    low = max(0, count.bit_length() - 3)
    return count >> low << low
