"""Warmup of an asynchronous device: measure the memory of steps and graphs, size the cache with the rest, capture.

Measurements run over a cache of two blocks, before the real one is reserved.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tgi_core.backend import Capacity, Memory, OutputOptions, Progress, Request, Sampling, WarmupPlan
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.ahead.device import AheadRunner, QueuedDevice
from tgi_core.engine.ahead.graphs import Bucket, StepGraphs
from tgi_core.engine.ahead.steps import DeviceSteps
from tgi_core.engine.memory import default_limits

_log = logging.getLogger("tgi_core.engine")

SPLIT_POSITIONS = 4095
"""Positions of a row that attention kernels split among multiprocessors when the row is alone."""


def warm_up(
    device: QueuedDevice, runner: AheadRunner, plan: WarmupPlan, captures: bool, progress: Progress
) -> tuple[DeviceSteps, Capacity]:
    """Steps over the real cache, captured if possible, and the limits that follow. Raises OutOfMemory."""
    progress("warming up", 0, 1, "step")
    shares = _measured(device, runner, plan, captures)
    capacity = device.now(lambda: runner.reserve(plan, shares))
    steps = device.steps(runner, capacity.max_rows, capacity.max_row_tokens)
    graphs = device.graphs(steps) if captures else ""
    if isinstance(graphs, StepGraphs):
        wanted = len(graphs.wanted)
        progress("capturing graphs", 0, wanted, "step")
        for done, _ in enumerate(graphs.capture(), 1):
            progress("capturing graphs", done, wanted, "step")
    for share in capacity.memory:
        _log.info("memory plan: %s %.1f MiB", share.name, share.num_bytes / 2**20)
    progress("warming up", 1, 1, "step")
    return steps, replace(capacity, in_flight=device.queue.in_flight, compiles=steps.compiles)


def _measured(device: QueuedDevice, runner: AheadRunner, plan: WarmupPlan, captures: bool) -> tuple[Memory, ...]:
    """The memory of the largest steps and of all graphs."""
    rows, step_tokens = default_limits(plan, device.kit)
    row_tokens = min(plan.max_row_tokens or device.shape.max_positions, device.shape.max_positions)
    device.now(runner.use_probe_cache)
    steps = device.steps(runner, rows, row_tokens)
    for each in _kinds(rows, row_tokens, runner.block_size):
        _run(steps, each)
    longest = min(row_tokens, step_tokens)
    row_inputs = [
        _probe_inputs(min(rows, step_tokens // longest), longest, runner.block_size, want=OutputOptions(prompt_logprobs=True)),
        _probe_inputs(rows, min(row_tokens, step_tokens // rows), runner.block_size, sampling=Sampling(do_sample=True)),
    ]
    if steps.processing is not None:
        everything = Sampling(do_sample=True, repetition_penalty=1.1, logit_bias=((0, 1.0),), top_p=0.9, typical_p=0.9)
        row_inputs.append(_probe_inputs(rows, 1, runner.block_size, sampling=everything, want=OutputOptions(top_n=1)))
    peaks = [device.queue.measured(partial(_run, steps, each)).peak for each in row_inputs]
    shares = [Memory("activations", max(*peaks, device.shape.sampling_bytes(rows * (1 + plan.draft))))]
    if steps.processing is not None:
        shares.append(Memory("token counts", steps.processing.num_bytes))
    if captures:
        shares.append(Memory("graphs", _graph_bytes(device, steps)))
    steps.release()
    runner.release()
    return tuple(shares)


def _kinds(rows: int, row_tokens: int, block_size: int) -> Iterator[list[RowInput]]:
    """Small steps of every kind that eager steps have kernels of their own for, so that no request waits for a compile: a row of one token
    with few positions before it, or with so many that they are split, alone and beside a prompt of few tokens."""
    for start in sorted({min(positions, row_tokens - 1) for positions in (1, SPLIT_POSITIONS)}):
        yield _probe_inputs(1, 1, block_size, start)
        if rows > 1 and row_tokens > 1:
            yield _probe_inputs(1, 1, block_size, start) + _probe_inputs(1, 2, block_size, first_id=2)


def _graph_bytes(device: QueuedDevice, steps: DeviceSteps) -> int:
    """The memory of all graphs: the largest allocates the shared pool, and each other one is assumed to add what the second adds."""
    graphs = device.graphs(steps)
    if isinstance(graphs, str):
        return 0
    captures = graphs.capture(graphs.wanted[:2])
    kept = [device.queue.measured(partial(_advance, captures)).kept for _ in graphs.wanted[:2]]
    return graphs.num_bytes + kept[0] + (len(graphs.wanted) - 1) * kept[-1]


def _advance(captures: Iterator[Bucket]) -> None:
    next(captures)


def _run(steps: DeviceSteps, row_inputs: Sequence[RowInput]) -> None:
    steps.enqueue(row_inputs, {row_input.row.request.id for row_input in row_inputs}).wait()


def _probe_inputs(count: int, take: int, block_size: int, start: int = 0, first_id: int = 1, **fields: Any) -> list[RowInput]:
    """Rows that run `take` tokens of a prompt each from position `start` on, all in block 1; `fields` are those of their requests."""
    length = start + take
    requests = [Request(first_id + i, (0,) * length, length, 0, ((),), take, **fields) for i in range(count)]
    rows = [RowState(request, list(request.tokens), length, ([1] * -(-length // block_size),)) for request in requests]
    return [RowInput(row, start, take, yields=True) for row in rows]
