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
from tgi_core.backend.ledger import LiveRow, Work
from tgi_core.engine.ahead.device import AheadRunner, QueuedDevice
from tgi_core.engine.ahead.graphs import Bucket, DecodeGraphs, buckets
from tgi_core.engine.ahead.steps import DeviceSteps
from tgi_core.engine.memory import default_limits

_log = logging.getLogger("tgi_core.engine")


def warmed(
    device: QueuedDevice, runner: AheadRunner, plan: WarmupPlan, captures: bool, progress: Progress
) -> tuple[DeviceSteps, Capacity]:
    """Steps over the real cache, captured if possible, and the limits that follow. Raises OutOfMemory."""
    progress("warming up", 0, 1, "step")
    shares = _measured(device, runner, plan, captures)
    capacity = device.now(lambda: runner.reserve(plan, shares))
    steps = device.steps(runner, capacity.max_rows, capacity.max_row_tokens)
    graphs = device.graphs(steps) if captures else ""
    if isinstance(graphs, DecodeGraphs):
        wanted = buckets(capacity.max_rows)
        progress("capturing graphs", 0, len(wanted), "step")
        for done, _ in enumerate(graphs.capture(wanted), 1):
            progress("capturing graphs", done, len(wanted), "step")
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
    longest = min(row_tokens, step_tokens)
    works = (
        _probe_works(min(rows, step_tokens // longest), longest, runner.block_size, want=OutputOptions(prompt_logprobs=True)),
        _probe_works(rows, min(row_tokens, step_tokens // rows), runner.block_size, sampling=Sampling(do_sample=True)),
    )
    peaks = [device.queue.measured(partial(_run, steps, each)).peak for each in works]
    shares = [Memory("activations", max(*peaks, device.shape.sampling_bytes(rows)))]
    if captures:
        shares.append(Memory("graphs", _graph_bytes(device, steps, rows)))
    steps.release()
    runner.release()
    return tuple(shares)


def _graph_bytes(device: QueuedDevice, steps: DeviceSteps, rows: int) -> int:
    """The memory of all graphs: the largest allocates the shared pool, and each other one is assumed to add what the second adds."""
    graphs = device.graphs(steps)
    if isinstance(graphs, str):
        return 0
    wanted = buckets(rows)
    captures = graphs.capture(wanted[:2])
    kept = [device.queue.measured(partial(_advance, captures)).kept for _ in wanted[:2]]
    return graphs.num_bytes + kept[0] + (len(wanted) - 1) * kept[-1]


def _advance(captures: Iterator[Bucket]) -> None:
    next(captures)


def _run(steps: DeviceSteps, works: Sequence[Work]) -> None:
    steps.give(works, {work.row.request.id for work in works}).wait()


def _probe_works(count: int, take: int, block_size: int, **fields: Any) -> list[Work]:
    """Rows that run a prompt of `take` tokens each, all in block 1; `fields` are those of their requests."""
    requests = [Request(id, (0,) * take, take, 0, ((),), take, **fields) for id in range(1, count + 1)]
    rows = [LiveRow(request, list(request.tokens), take, ([1] * -(-take // block_size),)) for request in requests]
    return [Work(row, 0, take, yields=True) for row in rows]
