"""Warm-up of a static device: first the plan, then every program; after that, nothing is compiled."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from tgi_core.backend import Capacity, Memory, Progress, WarmupPlan
from tgi_core.engine.compiling.cache import CompileCache
from tgi_core.engine.memory import coarse, default_limits
from tgi_core.engine.static.buckets import Buckets
from tgi_core.engine.static.runner import StaticRunner
from tgi_core.engine.static.steps import StaticSteps

_log = logging.getLogger("tgi_core.engine")


def warm_up(
    runner: StaticRunner, check: Callable[[], None], compile_cache: str, plan: WarmupPlan, progress: Progress
) -> tuple[StaticSteps, Capacity]:
    """Steps over the real cache, with all programs compiled, and the limits that follow; `check` compares a step with plain torch. Raises
    OutOfMemory, Unsupported, InvalidModel."""
    capacity, buckets = plan_warmup(runner, plan)
    check()  # the check compiles its own programs: a plan that does not fit in memory must fail before that
    runner.device.now(lambda: runner.allocate(capacity))
    fields = runner.fields(capacity)
    cache = CompileCache(Path(compile_cache), fields) if compile_cache else None
    compiler = runner.kit.program_compiler(fields, cache.open() if cache else None)
    alone = runner.collectives is None  # ranks get rank 0's tokens
    steps = runner.device.now(lambda: runner.steps(capacity, buckets, compiler, argmax=alone))
    shapes = buckets.shapes()
    _log.info("will compile %d programs: %s", len(shapes), buckets)
    progress("compiling", 0, len(shapes), "step")
    began = time.monotonic()
    for done, shape in enumerate(shapes, 1):
        runner.device.now(partial(steps.programs.warm, shape))
        progress("compiling", done, len(shapes), "step")
    compiler.seal()
    if cache:
        cache.write([str(shape) for shape in shapes])
    _log.info("compiled %d programs in %.1f s", steps.compiles, time.monotonic() - began)
    return steps, replace(capacity, takes=buckets.takes, in_flight=runner.device.queue.in_flight, compiles=steps.compiles)


def plan_warmup(runner: StaticRunner, plan: WarmupPlan) -> tuple[Capacity, Buckets]:
    """The limits and the buckets that follow from them, before anything is allocated. Raises OutOfMemory."""
    rows, step_tokens = default_limits(plan, runner.kit)
    rules, shares = runner.kit.rules, [Memory("activations", runner.shape.activation_bytes(rows * (1 + plan.draft), step_tokens))]
    count = len(Buckets.of(runner.promise(plan, tuple(shares)), rules).shapes())
    shares.append(Memory(f"{count} programs", count * runner.kit.program_bytes))
    capacity = runner.promise(plan, tuple(shares))
    blocks, useful = capacity.groups[0].num_blocks, rows * -(-capacity.max_row_tokens // capacity.groups[0].block_size)
    if plan.num_blocks is None and blocks < useful:
        capacity = runner.promise(replace(plan, num_blocks=coarse(blocks)), tuple(shares))
    return capacity, Buckets.of(capacity, rules)
