"""Handles are single use, and no verb accepts a stale one."""

from __future__ import annotations

from tgi_conformance.calls import STRANGER, Clear, Decode, Filter, Prefill
from tgi_conformance.clause import clause
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.verdict import Level
from tgi_core.backend import InvalidRequest, UnknownBatch


def _all_refuse(stage: Stage, dead: int, row: int) -> None:
    """Check that every verb that takes a handle raises UnknownBatch."""
    stage.refuse(UnknownBatch, Decode((dead,)))
    stage.refuse(UnknownBatch, Filter(dead, (row,)))
    stage.refuse(UnknownBatch, Filter(dead, ()))
    stage.refuse(UnknownBatch, Clear(dead))


@clause(
    "handles.after-decode",
    "A handle is dead once decode has taken it.",
    Level.L1,
    situations=("decode refused", "filter refused", "clear refused"),
)
def after_decode(scene: Scene) -> None:
    """The new handle stays valid."""
    stage = scene.stage()
    request = stage.request(stage.prompts[0])
    old = stage.start(request)
    new = stage.decode(old)
    _all_refuse(stage, old, request.id)
    stage.decode(new, steps=2)


@clause(
    "handles.after-filter",
    "A handle is dead once filter has taken it, whether or not rows were removed.",
    Level.L1,
    situations=("filter keeps all",),
    rows=2,
)
def after_filter(scene: Scene) -> None:
    """Keep all rows, then keep one of two."""
    stage = scene.stage()
    first, second = stage.request(stage.prompts[0]), stage.request(stage.prompts[1])
    old = stage.start(first, second)
    whole = stage.filter(old, (first.id, second.id))
    _all_refuse(stage, old, first.id)
    part = stage.filter(whole, (second.id,))
    _all_refuse(stage, whole, second.id)
    stage.decode(part, steps=2)


@clause("handles.after-clear", "A handle is dead once its batch is cleared.", Level.L1, rows=3)
def after_clear(scene: Scene) -> None:
    """By a filter that keeps nothing, by clearing one batch, then by clearing everything."""
    stage = scene.stage()
    requests = [stage.request(prompt) for prompt in stage.prompts[:3]]
    batches = [stage.start(request) for request in requests]
    stage.filter(batches[2], ())
    _all_refuse(stage, batches[2], requests[2].id)
    stage.clear(batches[0])
    _all_refuse(stage, batches[0], requests[0].id)
    stage.clear(None)
    _all_refuse(stage, batches[1], requests[1].id)


@clause(
    "handles.after-join",
    "A handle is dead once prefill has taken its batch.",
    Level.L1,
    needs=("mixing",),
    situations=("rows join a batch",),
    rows=2,
)
def after_join(scene: Scene) -> None:
    """A stale handle is also refused as the batch to join."""
    stage = scene.stage()
    first = stage.request(stage.prompts[0])
    old = stage.start(first)
    new = stage.start(stage.request(stage.prompts[1]), beside=old)
    _all_refuse(stage, old, first.id)
    late = stage.request(stage.prompts[2])
    stage.refuse(UnknownBatch, Prefill((late,), old))
    stage.decode(new, steps=2)


@clause(
    "handles.after-merge",
    "Merging invalidates every handle it takes, not only the first.",
    Level.L1,
    situations=("batches merge",),
    rows=3,
)
def after_merge(scene: Scene) -> None:
    """Merge three batches into one."""
    stage = scene.stage()
    requests = [stage.request(prompt) for prompt in stage.prompts[:3]]
    batches = [stage.start(request) for request in requests]
    merged = stage.decode(*batches)
    for batch, request in zip(batches, requests, strict=True):
        _all_refuse(stage, batch, request.id)
    stage.decode(merged)


@clause("handles.strangers", "A handle that was never issued is an UnknownBatch.", Level.L1)
def strangers(scene: Scene) -> None:
    """Alone, and together with a live batch."""
    stage = scene.stage()
    request = stage.request(stage.prompts[0])
    batch = stage.start(request)
    _all_refuse(stage, STRANGER, request.id)
    stage.refuse(UnknownBatch, Decode((batch, STRANGER)))
    stage.decode(batch)


@clause("handles.distinct", "Decode takes one or more distinct batches.", Level.L1, rows=2)
def distinct(scene: Scene) -> None:
    """No batches, the same one twice, and the same one twice among others."""
    stage = scene.stage()
    first, second = stage.start(stage.request(stage.prompts[0])), stage.start(stage.request(stage.prompts[1]))
    stage.refuse(InvalidRequest, Decode(()))
    stage.refuse(InvalidRequest, Decode((first, first)))
    stage.refuse(InvalidRequest, Decode((first, second, first)))
    stage.decode(first, second, steps=2)
