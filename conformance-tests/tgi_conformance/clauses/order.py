"""Verbs take effect in call order, steps are read once, and rows come in the order of the batch."""

from __future__ import annotations

from collections.abc import Callable

from tgi_conformance.calls import Read
from tgi_conformance.clause import clause
from tgi_conformance.masks import OWN
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.target import mixed_plan
from tgi_conformance.verdict import DoesNotApply, Level, Violation
from tgi_core.backend import InvalidRequest

_HELD_S = 3.0
"""Maximum time for which a step is held back: many times what bookkeeping takes on a busy machine."""


def four(stage: Stage) -> int:
    """Start a batch of four rows."""
    return stage.start(*(stage.request(prompt, want=stage.wants) for prompt in stage.prompts[:4]))


@clause(
    "order.batch",
    "Rows come in batch order: merged batches as listed, then new requests.",
    Level.L1,
    situations=("batches merge",),
    rows=4,
)
def batch_order(scene: Scene) -> None:
    """Two batches, merged in reverse order."""
    stage = scene.stage()
    first = stage.start(*(stage.request(prompt) for prompt in stage.prompts[:2]))
    second = stage.start(*(stage.request(prompt) for prompt in stage.prompts[2:4]))
    stage.decode(second, first, steps=3)


@clause(
    "order.read-once", "A step is read once; reading it again, or one that was never launched, is an InvalidRequest.", Level.L1
)
def read_once(scene: Scene) -> None:
    """Between live steps."""
    stage = scene.stage()
    batch = stage.start(stage.request(stage.prompts[0]))
    stage.refuse(InvalidRequest, Read(batch))
    stage.refuse(InvalidRequest, Read(-1))
    stage.decode(batch, steps=2)


@clause(
    "order.run-ahead",
    "A step may be launched before the previous one is read, and generates the same tokens as synchronously.",
    Level.L1,
    needs=("run_ahead",),
    situations=("a step is launched ahead",),
)
def run_ahead(scene: Scene) -> None:
    """Always one step ahead, across block boundaries."""
    stage = scene.stage()
    step = stage.launch(*(stage.request(prompt, want=stage.wants) for prompt in stage.prompts[: min(3, stage.capacity.max_rows)]))
    for _ in range(8):
        after = stage.go_on(step)
        stage.read(step)
        step = after
    stage.read(step)


@clause(
    "order.join-ahead",
    "New rows may join a batch whose last step is unread.",
    Level.L1,
    needs=("run_ahead", "mixing"),
    situations=("rows join a batch", "an earlier step is unread"),
    rows=3,
)
def join_ahead(scene: Scene) -> None:
    """Two joins in a row, each before the previous step is read."""
    stage = scene.stage()
    first = stage.launch(stage.request(stage.prompts[0]))
    second = stage.launch(stage.request(stage.prompts[1]), beside=first)
    stage.read(first)
    third = stage.launch(stage.request(stage.prompts[2]), beside=second)
    stage.read(second)
    stage.decode(stage.read(third), steps=2)


@clause(
    "order.filter-ahead",
    "Filter takes effect between the steps before and after it, whether they have been read or not.",
    Level.L1,
    needs=("run_ahead",),
    situations=("a late row is ignored", "a row leaves"),
    rows=3,
)
def filter_ahead(scene: Scene) -> None:
    """The removed row is still in the step launched before."""
    stage = scene.stage()
    requests = [stage.request(prompt) for prompt in stage.prompts[:3]]
    step = stage.launch(*requests)
    kept = stage.filter(step, [requests[0].id, requests[2].id])
    after = stage.go_on(kept)
    stage.read(step)
    stage.read(after)
    stage.decode(after, steps=2)


@clause(
    "order.given-up",
    "Steps launched before everything is cleared are never read; the next step read is a later one.",
    Level.L1,
    situations=("a step is given up",),
    rows=3,
)
def given_up(scene: Scene) -> None:
    """Leave as many steps unread as allowed, twice, as the server does after an error."""
    stage = scene.stage()
    for _ in range(2):
        step = stage.launch(stage.request(stage.prompts[0]), stage.request(stage.prompts[1]))
        for _ in range(stage.capacity.in_flight - 1):
            step = stage.go_on(step)
        stage.clear(None)
        stage.decode(stage.start(stage.request(stage.prompts[2], want=stage.wants)), steps=3)


@clause(
    "order.never-waits",
    "Filter and clear are bookkeeping: they do not wait for steps that are launched.",
    Level.L1,
    needs=("masks", "run_ahead"),
    since=(1, 2),
    rows=3,
)
def never_waits(scene: Scene) -> None:
    """A step that cannot end, because its mask source is held back; a timer releases it, so that a session that waits continues in the
    end."""
    stage = scene.stage(mixed_plan(scene.declared[0].block_sizes), OWN, shared=True)
    first, second, third = (stage.request(prompt, masked=True) for prompt in stage.prompts[:3])
    for leaves in (first, third):  # now, because opening a session may take longer than the source is held back
        scene.makes_alone(leaves, 2, stage.play.judge.yardstick)
    batch, other = stage.start(first, second), stage.start(third)
    masks = stage.play.masks
    assert masks is not None
    with masks.held(_HELD_S) as held:
        step = stage.go_on(batch)
        if not held():
            raise DoesNotApply("a verb that launches a step waits for its masks, so that none is under way afterwards")
        rest = stage.filter(step, [second.id])
        _still(held, "filter")
        stage.clear(other)
        _still(held, "clear")
    stage.read(step)
    stage.decode(rest, steps=2)


def _still(held: Callable[[], bool], verb: str) -> None:
    if not held():
        raise Violation(
            "waits", f"{verb} returned only after the step that was launched before it could end: it waited for the step"
        )
