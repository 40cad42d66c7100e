"""Nothing within the promised limits runs out of memory, and anything beyond them is refused."""

from __future__ import annotations

from tgi_conformance.calls import Prefill
from tgi_conformance.clause import clause
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.verdict import Level, NotReached
from tgi_core.backend import CapacityExceeded, Request

_MOST_TOKENS = 4096
"""Most tokens that the suite fills."""


def _long(stage: Stage, length: int, shift: int) -> Request:
    return stage.request(stage.varied((3 * index + shift) % 50 for index in range(length)))


@clause("promise.brim", "Rows, step tokens and blocks can be used up to the reported limits without OutOfMemory.", Level.L3)
def brim(scene: Scene) -> None:
    """Start as many rows as promised, each as long as promised, in steps as large as promised, and decode them together to the
    end."""
    stage = scene.stage()
    rows, length = stage.capacity.max_rows, stage.capacity.max_row_tokens
    size, blocks = stage.capacity.groups[0].block_size, stage.capacity.groups[0].num_blocks
    rows = min(rows, blocks // -(-length // size))
    if rows * length > _MOST_TOKENS:
        raise NotReached(f"{rows} rows of {length} tokens are promised; the suite fills at most {_MOST_TOKENS} tokens")
    prompt = min(length - 3, stage.capacity.max_step_tokens)
    batches = [stage.start(_long(stage, prompt, index)) for index in range(rows)]
    stage.decode(*batches, steps=min(3, length - prompt))
    if rows == stage.capacity.max_rows:
        stage.refuse(CapacityExceeded, Prefill((_one_more(stage),)))


def _one_more(stage: Stage) -> Request:
    """Build a one-token request on a spare block; where no block is free, on the last one."""
    spare = next((free for free in (stage.free(0),) if free), ())
    return Request(
        999_999, (1,), 1, 0, ((spare[0] if spare else stage.capacity.groups[0].num_blocks,),) * len(stage.capacity.groups), 1
    )


@clause("promise.step", "A step may be as large as the reported limit.", Level.L3)
def step(scene: Scene) -> None:
    """max_step_tokens in one prefill, spread over as few rows as possible."""
    stage = scene.stage()
    limit, length = stage.capacity.max_step_tokens, stage.capacity.max_row_tokens
    if limit > _MOST_TOKENS:
        raise NotReached(f"a step of {limit} tokens is promised; the suite fills at most {_MOST_TOKENS} tokens")
    whole, rest = divmod(limit, length)
    lengths = [length] * whole + ([rest] if rest else [])
    most = min(stage.capacity.max_prefill_rows, stage.capacity.max_rows)
    short = min(sum(lengths[most:]), stage.capacity.max_rows - most)
    stage.start(*(_long(stage, size, index) for index, size in enumerate([*lengths[:most], *[1] * short])))
