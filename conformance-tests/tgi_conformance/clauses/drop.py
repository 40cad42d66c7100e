"""A row that filter or clear removed is in no step launched later, so the very next verb may grant its blocks."""

from __future__ import annotations

from tgi_conformance.calls import Decode
from tgi_conformance.clause import clause
from tgi_conformance.scenario import Scene
from tgi_conformance.verdict import Level
from tgi_core.backend import Grant, UnknownRequest


@clause("drop.filtered", "A row that filter removed is in no later step.", Level.L1, situations=("a row leaves",), rows=2)
def filtered(scene: Scene) -> None:
    """It produces no results, and a grant for it is refused."""
    stage = scene.stage()
    stays, leaves = stage.request(stage.prompts[0]), stage.request(stage.prompts[1])
    batch = stage.filter(stage.start(stays, leaves), [stays.id])
    stage.refuse(UnknownRequest, Decode((batch,), (Grant(leaves.id, 1),)))
    stage.decode(batch, steps=4)


@clause("drop.reuse-after-filter", "The very next call may grant the blocks of a row that filter removed.", Level.L1, rows=2)
def reuse_after_filter(scene: Scene) -> None:
    """A newcomer of the same length takes the blocks over, then decodes together with the row that stayed."""
    stage = scene.stage()
    stays, leaves = stage.request(stage.prompts[0]), stage.request(stage.prompts[2])
    batch = stage.filter(stage.start(stays, leaves), [stays.id])
    newcomer = stage.start(stage.request(stage.prompts[5], want=stage.wants))
    stage.decode(batch, newcomer, steps=4)


@clause("drop.reuse-after-clear", "The very next call may grant the blocks of a cleared batch.", Level.L1)
def reuse_after_clear(scene: Scene) -> None:
    """Clear everything; shorter and longer rows take the blocks over."""
    stage = scene.stage()
    room = min(3, stage.capacity.max_rows)
    stage.decode(stage.start(*(stage.request(prompt) for prompt in stage.prompts[:room])), steps=3)
    stage.clear(None)
    stage.decode(stage.start(*(stage.request(prompt, want=stage.wants) for prompt in stage.prompts[-room:])), steps=3)


@clause(
    "drop.reuse-ahead",
    "Blocks of a dropped row may be granted while a step that still contains the row is unread.",
    Level.L1,
    needs=("run_ahead",),
    situations=("a late row is ignored",),
    rows=2,
)
def reuse_ahead(scene: Scene) -> None:
    """The dropped row's writes come first, the newcomer's after them."""
    stage = scene.stage()
    stays, leaves = stage.request(stage.prompts[0]), stage.request(stage.prompts[2])
    batch = stage.start(stays, leaves)
    step = stage.go_on(batch)
    rest = stage.filter(step, [stays.id])
    newcomer = stage.launch(stage.request(stage.prompts[5], want=stage.wants))
    stage.read(step)
    stage.read(newcomer)
    stage.decode(rest, newcomer, steps=3)


@clause(
    "drop.after-prefill",
    "A row that leaves right after its prefill gives back everything it held.",
    Level.L1,
    situations=("a row leaves",),
    rows=2,
)
def after_prefill(scene: Scene) -> None:
    """Start more rows in turn than fit at once, and drop each after its first token."""
    stage = scene.stage()
    stays = stage.request(stage.prompts[1])
    batch = stage.start(stays)
    for index in range(min(stage.capacity.max_rows, 16) + 2):
        request = stage.request(stage.prompts[index % len(stage.prompts)])
        stage.filter(stage.start(request), ())
    stage.decode(batch, steps=2)
