"""Granted blocks must cover every position a step can write, and a step writes nowhere else."""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.calls import Decode, Prefill
from tgi_conformance.clause import clause
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.verdict import Level
from tgi_core.backend import NULL_BLOCK, Grant, InvalidRequest


def block_size(stage: Stage) -> int:
    """Block size of the first cache group, in tokens."""
    return stage.capacity.groups[0].block_size


def up_to_the_edge(stage: Stage, short: int = 0) -> tuple[int, ...]:
    """Return a prompt that fills one block, less `short` tokens."""
    return stage.varied(range(7, 7 + max(1, block_size(stage) - short)))


@clause("cover.prefill", "A request whose blocks do not cover the positions of its step is an InvalidRequest.", Level.L1)
def prefill(scene: Scene) -> None:
    """No blocks at all; one block too few."""
    stage = scene.stage()
    groups = len(stage.capacity.groups)
    request = stage.request(stage.prompts[0])
    stage.refuse(InvalidRequest, Prefill((replace(request, blocks=((),) * groups),)))
    if stage.capacity.groups[0].block_size < stage.capacity.max_row_tokens:
        long = stage.request((*up_to_the_edge(stage), 1))
        stage.refuse(InvalidRequest, Prefill((replace(long, blocks=tuple(table[:-1] for table in long.blocks)),)))
        stage.filter(stage.start(long), ())
    stage.decode(stage.start(request))


@clause("cover.decode", "A decode that would write beyond a row's blocks is an InvalidRequest.", Level.L1)
def decode(scene: Scene) -> None:
    """At the edge of a block; with the next block granted the row goes on."""
    stage = scene.stage()
    size = stage.capacity.groups[0].block_size
    if size >= stage.capacity.max_row_tokens:
        return _whole_row_block(stage)
    batch = stage.start(stage.request(up_to_the_edge(stage)))
    stage.refuse(InvalidRequest, Decode((batch,)))
    stage.decode(batch, steps=2)
    return None


def _whole_row_block(stage: Stage) -> None:
    """Where one block holds a whole row, it covers the last position, so only a missing block can be refused."""
    request = stage.request(stage.prompts[0])
    stage.refuse(InvalidRequest, Prefill((replace(request, blocks=tuple(() for _ in request.blocks)),)))
    stage.decode(stage.start(request))


@clause(
    "cover.block-ids", "Block ids are 1…num_blocks: the null block and any id outside that range are an InvalidRequest.", Level.L1
)
def block_ids(scene: Scene) -> None:
    """In a request and in a grant."""
    stage = scene.stage()
    request = stage.request(stage.prompts[0])
    beyond = stage.capacity.groups[0].num_blocks + 1
    for wrong in (NULL_BLOCK, beyond, -1):
        stage.refuse(InvalidRequest, Prefill((replace(request, blocks=tuple((wrong, *table[1:]) for table in request.blocks)),)))
    batch = stage.start(request)
    for wrong in (NULL_BLOCK, beyond, -1):
        stage.refuse(InvalidRequest, Decode((batch,), (Grant(request.id, 1, ((wrong,),) * len(request.blocks)),)))
    stage.decode(batch, steps=2)


@clause("cover.distinct", "A block that appears twice in a row's table is an InvalidRequest.", Level.L1)
def distinct(scene: Scene) -> None:
    """Twice in a request; in both a grant and the table; twice in a grant."""
    stage = scene.stage()
    request = stage.request(stage.prompts[0])
    stage.refuse(InvalidRequest, Prefill((replace(request, blocks=tuple((*table, table[0]) for table in request.blocks)),)))
    batch = stage.start(request)
    again = tuple(table[:1] for table in request.blocks)
    stage.refuse(InvalidRequest, Decode((batch,), (Grant(request.id, 1, again),)))
    (spare,) = stage.spare_blocks(1)
    if len(request.blocks) == 1:
        stage.refuse(InvalidRequest, Decode((batch,), (Grant(request.id, 1, ((spare, spare),)),)))
    stage.decode(batch, steps=2)


@clause("cover.groups", "A request and a grant have one tuple of blocks per cache group.", Level.L1)
def groups(scene: Scene) -> None:
    """No groups at all and one group too many in a request, one too many in a grant."""
    stage = scene.stage()
    request = stage.request(stage.prompts[0])
    stage.refuse(InvalidRequest, Prefill((replace(request, blocks=()),)))
    stage.refuse(InvalidRequest, Prefill((replace(request, blocks=(*request.blocks, (1,))),)))
    batch = stage.start(request)
    stage.refuse(InvalidRequest, Decode((batch,), (Grant(request.id, 1, ((),) * (len(request.blocks) + 1)),)))
    stage.decode(batch)


@clause(
    "cover.neighbours",
    "A step writes only into the blocks of its own rows.",
    Level.L1,
    needs=("paging",),
    situations=("a row grows by a block",),
    rows=4,
)
def neighbours(scene: Scene) -> None:
    """Rows in adjacent blocks fill them to the edge and cross it, in turn and together."""
    stage = scene.stage()
    edge = up_to_the_edge(stage, short=1)
    prompts = (edge, (*edge, 5), (*edge, 5, 6), (9, *edge[1:]))
    batches = [stage.start(stage.request(prompt, want=stage.wants)) for prompt in prompts]
    batches = [stage.decode(batch, steps=3) for batch in batches]
    stage.decode(*batches, steps=block_size(stage) + 1)
