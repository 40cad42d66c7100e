"""Clear returns how many rows it dropped; clearing everything may be repeated."""

from __future__ import annotations

from tgi_conformance.clause import clause
from tgi_conformance.scenario import Scene
from tgi_conformance.target import wide_plan
from tgi_conformance.verdict import Level


@clause(
    "clear.all",
    "Clearing everything drops every batch, returns how many rows there were, and may be repeated.",
    Level.L1,
    situations=("everything is cleared",),
    rows=3,
)
def clear_all(scene: Scene) -> None:
    """Two batches of three rows are cleared, then nothing is, and the session still works."""
    stage = scene.stage()
    stage.start(stage.request(stage.prompts[0]))
    stage.start(stage.request(stage.prompts[1]), stage.request(stage.prompts[2]))
    stage.clear(None)
    stage.clear(None)
    stage.decode(stage.start(stage.request(stage.prompts[3])), steps=2)


@clause("clear.none", "Clearing everything in an empty session returns 0.", Level.L1)
def clear_nothing(scene: Scene) -> None:
    """Right after warmup: no clause before this one uses such a session."""
    scene.stage(wide_plan(scene.declared[0].block_sizes), shared=True).clear(None)


@clause(
    "clear.one",
    "Clearing one batch returns how many rows it had and leaves the other batches alone.",
    Level.L1,
    situations=("a batch is cleared beside others",),
    rows=3,
)
def clear_one(scene: Scene) -> None:
    """By the batch's current handle, after decodes and a merge."""
    stage = scene.stage()
    first, second, third = (stage.start(stage.request(prompt)) for prompt in stage.prompts[:3])
    merged = stage.decode(first, third)
    second = stage.decode(second)
    stage.clear(merged)
    stage.decode(second, steps=3)
