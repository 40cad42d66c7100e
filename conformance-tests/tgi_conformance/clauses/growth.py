"""Grants let rows grow: they append blocks to a row's table, and `take` is how many tokens the row runs."""

from __future__ import annotations

from tgi_conformance.calls import Decode
from tgi_conformance.clause import clause
from tgi_conformance.clauses.cover import block_size
from tgi_conformance.scenario import Scene
from tgi_conformance.verdict import Level, NotReached
from tgi_core.backend import CapacityExceeded, Grant, InvalidRequest


@clause(
    "growth.blocks",
    "A row grows block by block as blocks are granted.",
    Level.L1,
    needs=("paging",),
    situations=("a row grows by a block",),
)
def blocks(scene: Scene) -> None:
    """Several rows, each across two block boundaries."""
    stage = scene.stage()
    steps = min(2 * block_size(stage) + 1, stage.capacity.max_row_tokens - 10)
    stage.decode(
        stage.start(*(stage.request(prompt, want=stage.wants) for prompt in stage.prompts[: min(3, stage.capacity.max_rows)])),
        steps=steps,
    )


@clause(
    "growth.ahead",
    "Blocks may be granted long before they are needed, and are used in the order granted.",
    Level.L1,
    needs=("paging",),
    rows=2,
)
def ahead(scene: Scene) -> None:
    """Grant all blocks with the first decode, then none."""
    stage = scene.stage()
    size = block_size(stage)
    request, other = stage.request(stage.prompts[1], want=stage.wants), stage.request(stage.prompts[0])
    batch = stage.start(request, other)
    row = stage.row(request.id)
    early = Grant(request.id, 1, stage.grant(row, 2 * size).blocks)
    batch = stage.decode(batch, grants=[early, stage.grant(stage.row(other.id))])
    stage.decode(batch, steps=2 * size - 2)


@clause(
    "growth.sit-out",
    "A row with a take of 0 sits the step out, and later goes on as if nothing had happened.",
    Level.L1,
    situations=("a row sits out",),
    rows=2,
)
def sit_out(scene: Scene) -> None:
    """One of two rows pauses and gets a block during the pause; then both pause once."""
    stage = scene.stage()
    stays, pauses = stage.request(stage.prompts[0], want=stage.wants), stage.request(stage.prompts[2], want=stage.wants)
    batch = stage.start(stays, pauses)
    for _ in range(3):
        batch = stage.decode(batch, grants=[stage.grant(stage.row(stays.id)), Grant(pauses.id, 0)])
    waiting = Grant(pauses.id, 0, stage.grant(stage.row(pauses.id), min(8, stage.capacity.groups[0].block_size)).blocks)
    batch = stage.decode(batch, grants=[stage.grant(stage.row(stays.id)), waiting])
    batch = stage.decode(batch, grants=[Grant(stays.id, 0), Grant(pauses.id, 0)])
    stage.decode(batch, steps=3)


@clause("growth.one-token", "A row whose prompt is complete takes 0 or 1 token a step unless drafts are declared.", Level.L1)
def one_token(scene: Scene) -> None:
    """Takes of 2, 3 and -1 are an InvalidRequest."""
    stage = scene.stage()
    request = stage.request(stage.prompts[0])
    batch = stage.start(request)
    room = stage.grant(stage.row(request.id), 3).blocks
    for take in (2, 3, -1):
        stage.refuse(InvalidRequest, Decode((batch,), (Grant(request.id, take, room),)))
    stage.decode(batch, steps=2, grants=[Grant(request.id, 1, room)])


@clause(
    "growth.to-the-end", "A row runs up to max_row_tokens, whatever tokens it generates; one more is CapacityExceeded.", Level.L1
)
def to_the_end(scene: Scene) -> None:
    """Up to the last position, with a batch mate that goes on afterwards."""
    stage = scene.stage()
    length = min(stage.capacity.max_row_tokens, stage.capacity.max_step_tokens) - 4
    steps = stage.capacity.max_row_tokens - length
    if steps > 256 or length < 1:
        raise NotReached(
            f"a row of {stage.capacity.max_row_tokens} tokens takes too many steps of {stage.capacity.max_step_tokens} to fill"
        )
    request = stage.request(stage.varied((7 * index + 3) % 50 for index in range(length)))
    mates = [stage.request(stage.prompts[3])] if stage.capacity.max_rows > 1 else []
    batch = stage.start(request, *mates)
    batch = stage.decode(batch, steps=steps)
    full = stage.row(request.id)
    spare = tuple(stage.spare_blocks(1, group) if group == 0 else () for group in range(len(full.blocks)))
    stage.refuse(CapacityExceeded, Decode((batch,), (Grant(request.id, 1, spare),)))
    if rest := stage.filter(batch, [mate.id for mate in mates]):
        stage.decode(rest, steps=2)
