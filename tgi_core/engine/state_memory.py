"""How many rows' states fit in memory, with or without a paged cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tgi_core.backend import CacheGroup, CacheKind, Capacity, Memory, OutOfMemory, WarmupPlan
from tgi_core.engine.comparison import Agree
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.memory import default_limits
from tgi_core.engine.models.shape import ModelShape

Paged = Callable[[WarmupPlan, int], Capacity]
"""(plan, bytes that the states take) → the promise of a paged cache in the remaining memory."""


def plan_states(
    plan: WarmupPlan, shape: ModelShape, kit: DeviceKit, row_bytes: int, paged: Paged | None, agree: Agree = int
) -> Capacity:
    """Limits for rows that each have states of `row_bytes`, the same on all ranks; `paged` is None for models without attention.

    The plan's rows, or as many as fit: in half of the memory, if keys and values need the other half. Raises OutOfMemory.
    """
    wanted, step_tokens = default_limits(plan, kit)
    activations = shape.activation_bytes(wanted, step_tokens)
    free = max(0, kit.free_bytes() - activations)
    fitting = agree(free // max(1, row_bytes) // (2 if paged is not None and plan.max_rows is None else 1))
    rows = wanted if plan.max_rows is not None else max(1, min(wanted, fitting))
    if paged is None:
        rows = min(rows, plan.num_blocks or rows)
    if rows > fitting:
        raise OutOfMemory(f"states: {rows} rows need {rows * row_bytes:,} bytes, and {free:,} are free; lower --max-batch-size")
    states = CacheGroup(CacheKind.STATE, 1, rows)
    share = Memory("states", rows * row_bytes)
    if paged is not None:
        capacity = paged(replace(plan, max_rows=rows), share.num_bytes)
        states = replace(states, block_size=capacity.max_row_tokens)
        memory = (*(_without(each, share) for each in capacity.memory), share)
        return replace(capacity, groups=(*capacity.groups, states), memory=memory)
    row_tokens = min(plan.max_row_tokens or shape.max_positions, shape.max_positions)
    reserve = Memory("reserve", max(0, free - share.num_bytes))
    return Capacity(
        groups=(replace(states, block_size=row_tokens),),
        max_rows=rows,
        max_row_tokens=row_tokens,
        max_step_tokens=step_tokens,
        max_prefill_rows=rows,
        memory=(*shape.weights, share, Memory("activations", activations), reserve),
    )


def _without(memory: Memory, share: Memory) -> Memory:
    """The reserve that is left besides a share."""
    return replace(memory, num_bytes=max(0, memory.num_bytes - share.num_bytes)) if memory.name == "reserve" else memory
