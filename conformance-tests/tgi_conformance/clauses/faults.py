"""A failing step: its rows raise the error, and only that step's batch and the batches derived from it die.

A mask source that raises fails a step on any device that supports masks; other sessions may offer a `conformance_fail` method for
it.
"""

from __future__ import annotations

from tgi_conformance.calls import Clear, Decode, Filter
from tgi_conformance.clause import clause
from tgi_conformance.masks import BREAKING, LOSING
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.target import wide_plan
from tgi_conformance.verdict import Level, Violation
from tgi_core.backend import EMPTY, UnknownBatch

_LATE = "a step failed late"


def _doomed(stage: Stage, *mates: int) -> int:
    """Start a batch whose next step fails, with as many of the mates (prompt indices) as there is room for."""
    mates = mates[: stage.capacity.max_rows - 1]
    doomed = stage.doomed(stage.prompts[0])
    return stage.decode(stage.start(doomed, *(stage.request(stage.prompts[mate]) for mate in mates)))


def _dead(stage: Stage, batch: int) -> None:
    stage.refuse(UnknownBatch, Decode((batch,)))
    stage.refuse(UnknownBatch, Filter(batch, ()))
    stage.refuse(UnknownBatch, Clear(batch))


@clause(
    "faults.rows",
    "An error in a step is raised by its rows, not by the call that launched it.",
    Level.L3,
    needs=("late_failures",),
    situations=(_LATE,),
)
def rows(scene: Scene) -> None:
    """The batch is dead afterwards."""
    stage = scene.stage(masks=BREAKING)
    step = stage.go_on(_doomed(stage, 1))
    stage.read(step)
    _dead(stage, step)


@clause(
    "faults.others",
    "A batch that was not in the failed step stays alive and unchanged.",
    Level.L3,
    needs=("late_failures",),
    situations=(_LATE,),
    rows=4,
)
def others(scene: Scene) -> None:
    """Another batch's blocks lie next to those of the dead one, which a newcomer takes over."""
    stage = scene.stage(masks=BREAKING)
    apart = stage.start(stage.request(stage.prompts[2], want=stage.wants))
    step = stage.go_on(_doomed(stage, 1, 3))
    stage.read(step)
    newcomer = stage.start(stage.request(stage.prompts[5], want=stage.wants))
    stage.decode(apart, newcomer, steps=4)


@clause(
    "faults.place", "The rows of a failed step give their places back.", Level.L3, needs=("late_failures",), situations=(_LATE,)
)
def place(scene: Scene) -> None:
    """A full session dies, and as many rows start again."""
    stage = scene.stage(masks=BREAKING)
    room = min(stage.capacity.max_rows, 6)
    step = stage.go_on(_doomed(stage, *(index % 5 for index in range(room - 1))))
    stage.read(step)
    stage.decode(stage.start(*(stage.request(stage.prompts[index % 6]) for index in range(room))), steps=2)


@clause(
    "faults.derived",
    "Whatever was derived from a failed step is dead too, whether launched or filtered in the meantime.",
    Level.L3,
    needs=("late_failures", "run_ahead"),
    situations=(_LATE, "a step is launched ahead"),
    rows=4,
)
def derived(scene: Scene) -> None:
    """Launch the next step and merge another batch into it before the error is read."""
    stage = scene.stage(masks=BREAKING)
    apart = stage.start(stage.request(stage.prompts[2]))
    bystander = stage.start(stage.request(stage.prompts[4]))
    step = stage.go_on(_doomed(stage, 1))
    after = stage.go_on(step, apart)
    stage.read(step)
    _dead(stage, after)
    stage.decode(bystander, stage.start(stage.request(stage.prompts[5])), steps=3)


@clause(
    "faults.filtered",
    "Rows of a failing step die even if a filter separated them from the row that fails, and so do rows that joined since.",
    Level.L3,
    needs=("late_failures",),
    situations=(_LATE,),
    rows=3,
)
def filtered(scene: Scene) -> None:
    """Filter away the failing row before its step is read; where steps run ahead, also after another row has joined."""
    stage = scene.stage(masks=BREAKING)
    mate, joins = stage.request(stage.prompts[1]), stage.request(stage.prompts[2])
    doomed = stage.doomed(stage.prompts[0])
    beside = stage.start(joins)
    step = stage.go_on(stage.decode(stage.start(doomed, mate)))
    ahead = stage.capacity.in_flight > 1
    kept = stage.filter(stage.go_on(step, beside), [joins.id]) if ahead else stage.filter(step, [mate.id])
    stage.read(step)
    _dead(stage, kept)
    stage.decode(stage.start(stage.request(stage.prompts[5])), steps=2)


@clause(
    "faults.continue",
    "The requests of a failed step can continue from their tokens as new requests.",
    Level.L3,
    needs=("late_failures",),
    situations=(_LATE,),
    rows=2,
)
def go_on(scene: Scene) -> None:
    """The batch mate of the failing row continues from what it had generated."""
    stage = scene.stage(masks=BREAKING)
    mate = stage.request(stage.prompts[1])
    whole = [token for row in scene.makes_alone(mate, 8) for token in row.tokens]
    doomed = stage.doomed(stage.prompts[0])
    stage.read(stage.go_on(stage.decode(stage.start(doomed, mate))))
    made = stage.play.tokens(mate.id)
    again = stage.request((*mate.tokens, *made), prompt_len=len(mate.tokens))
    stage.decode(stage.start(again), steps=2)
    if scene.target.exact and stage.play.tokens(again.id) != whole[len(made) : len(made) + 3]:
        raise Violation(
            "continue", f"{made} was followed by {stage.play.tokens(again.id)}, without the fault by {whole[len(made) :]}"
        )


@clause(
    "faults.lost",
    "After DeviceLost the session can be closed, and a new one opens and works.",
    Level.L3,
    needs=("late_failures",),
    situations=(_LATE,),
)
def lost(scene: Scene) -> None:
    """The mask source raises DeviceLost."""
    stage = scene.stage(masks=LOSING)
    stage.read(stage.go_on(_doomed(stage, 1)))
    fresh = scene.stage(fresh=True, shared=True)
    fresh.decode(fresh.start(*(fresh.request(prompt) for prompt in fresh.prompts[: min(2, fresh.capacity.max_rows)])), steps=3)


@clause("faults.reopen", "Close is idempotent, ends the session, and leaves the device ready for the next one.", Level.L3)
def reopen(scene: Scene) -> None:
    """In two sessions, the second of them new: run a request, then close twice with rows alive and a step unread."""
    for fresh in (False, True):
        stage = scene.stage(fresh=fresh)
        stage.clear(stage.decode(stage.start(stage.request(stage.prompts[2])), steps=3))
        stage.go_on(stage.start(*(stage.request(prompt) for prompt in stage.prompts[: min(2, stage.capacity.max_rows)])))
        stage.play.close()
        stage.play.close()


@clause("faults.after-close", "No step runs after close: every call raises an error of the contract.", Level.L3)
def after_close(scene: Scene) -> None:
    """The rows of a step in flight, prefill and decode, in a session of a plan that no later clause uses."""
    stage = scene.stage(wide_plan(scene.declared[0].block_sizes), shared=True)
    request, other = stage.request(stage.prompts[0]), stage.request(stage.prompts[1])
    step = stage.go_on(stage.start(request))
    unread = stage.play.steps[step]
    stage.play.close()
    stage.play.raises_anything(lambda session: session.rows(unread))
    stage.play.raises_anything(lambda session: session.prefill((other,), EMPTY, ()))
    stage.play.raises_anything(lambda session: session.decode((stage.play.handles[1],), ()))
