"""Warm-up of a static device: the plan first, then every program, then nothing is compiled any more."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from tgi_core.backend import Capacity, Memory, Progress, WarmupPlan
from tgi_core.engine.ahead.device import QueuedDevice
from tgi_core.engine.memory import default_limits
from tgi_core.engine.static.cache import CompileCache
from tgi_core.engine.static.device import StaticKit
from tgi_core.engine.static.grid import Grid, HeadShape, Shape
from tgi_core.engine.static.runner import StaticRunner
from tgi_core.engine.static.steps import StaticSteps

_log = logging.getLogger("tgi_core.engine")

SIGNIFICANT = 3
"""Leading bits that the number of blocks keeps: it is part of every program, and free memory differs a little at each start."""


def warmed(
    device: QueuedDevice, kit: StaticKit, runner: StaticRunner, plan: WarmupPlan, compile_cache: str, progress: Progress
) -> tuple[StaticSteps, Capacity]:
    """Steps over the real cache, with all programs compiled, and the limits that follow. Raises OutOfMemory, Unsupported."""
    capacity, grid = planned(kit, runner, plan)
    device.now(lambda: runner.allocate(capacity))
    fields = runner.fields(capacity)
    cache = CompileCache(Path(compile_cache), fields) if compile_cache else None
    maker = kit.maker(fields, cache.open() if cache else None)
    steps, programs = device.now(lambda: runner.steps(capacity, grid, maker))
    shapes: list[Shape | HeadShape] = [*grid.bodies(), *grid.heads()]
    _log.info("will compile %d programs: %s", len(shapes), grid)
    progress("compiling", 0, len(shapes), "step")
    began = time.monotonic()
    for done, shape in enumerate(shapes, 1):
        device.now(partial(programs.warm, shape))
        progress("compiling", done, len(shapes), "step")
    programs.seal()
    if cache:
        cache.write([str(shape) for shape in shapes])
    _log.info("compiled %d programs in %.1f s", programs.compiles, time.monotonic() - began)
    return steps, replace(capacity, takes=grid.takes, in_flight=device.queue.in_flight, compiles=programs.compiles)


def planned(kit: StaticKit, runner: StaticRunner, plan: WarmupPlan) -> tuple[Capacity, Grid]:
    """The limits and the grid that follows from them, before anything is allocated. Raises OutOfMemory."""
    rows, step_tokens = default_limits(plan, kit)
    shares = [Memory("activations", runner.shape.activation_bytes(rows, step_tokens))]
    capacity = runner.promise(plan, tuple(shares))
    grid = Grid.of(capacity, kit.rules)
    shares.append(Memory(f"{grid.count} programs", grid.count * kit.program_bytes))
    capacity = runner.promise(plan, tuple(shares))
    blocks, useful = capacity.groups[0].num_blocks, rows * -(-capacity.max_row_tokens // capacity.groups[0].block_size)
    if plan.num_blocks is None and blocks < useful:
        capacity = runner.promise(replace(plan, num_blocks=coarse(blocks)), tuple(shares))
    return capacity, Grid.of(capacity, kit.rules)


def coarse(count: int) -> int:
    """The count rounded down to its leading bits."""
    low = max(0, count.bit_length() - SIGNIFICANT)
    return count >> low << low
