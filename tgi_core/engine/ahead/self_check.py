"""The self-check of graphs at load: a model's decode step can be captured, and replaying it gives the same logits."""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.backend import Kernel, OutputOptions, Request
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.ahead.device import AheadRunner, QueuedDevice
from tgi_core.engine.comparison import relative_difference
from tgi_core.engine.device_queue import CannotCapture
from tgi_core.engine.self_check import probe_ids

PART = "graphs"
"""The part of the model that the verdict is about."""


def graphs_verdict(device: QueuedDevice, runner: AheadRunner) -> Kernel:
    """Whether decode steps are captured, or why not. Leaves the runner without a cache."""
    try:
        reason = _why_not(device, runner)
    finally:
        runner.release()
    agreed = runner.agree(int(not reason))
    if agreed:
        return Kernel(PART, "decode steps")
    return Kernel(PART, "none", reason or "another rank cannot capture them")


def _why_not(device: QueuedDevice, runner: AheadRunner) -> str:
    eager = _decode_logits(device, runner, captured=False)
    try:
        replayed = _decode_logits(device, runner, captured=True)
    except CannotCapture as reason:
        return str(reason)
    difference = relative_difference(replayed, eager)
    limit = 1e-3 if runner.shape.dtype is torch.float32 else 0.1
    return "" if difference <= limit else f"replayed logits differ by {difference:.2g} of their size"


def _decode_logits(device: QueuedDevice, runner: AheadRunner, captured: bool) -> Tensor:
    """Logits [2, vocabulary] of two rows' last token. Raises CannotCapture."""
    device.now(runner.use_probe_cache)
    steps = device.steps(runner, 2, runner.block_size)
    if captured:
        graphs = device.graphs(steps)
        if isinstance(graphs, str):
            raise CannotCapture(graphs)
        for _ in graphs.capture():
            continue
    ids = probe_ids(runner.shape.vocab_size)
    rows = [_row(1, ids), _row(2, ids[::-1])]
    last = len(ids) - 1
    steps.enqueue([RowInput(row, 0, last, yields=False) for row in rows], {1, 2})
    step = steps.enqueue([RowInput(row, last, 1, yields=True) for row in rows], {1, 2})
    step.wait()
    row_inputs = [*step.step.waiting, *step.step.processed]  # in whichever way they are sampled, their logits are kept
    found = device.now(lambda: step.held(row_inputs).last.clone())
    steps.release()
    return found


def _row(id: int, tokens: list[int]) -> RowState:
    """A row whose logits are kept for the host."""
    return RowState(Request(id, tuple(tokens), len(tokens), 0, ((id,),), 1, want=OutputOptions(top_n=1)), tokens, 0, ([id],))
