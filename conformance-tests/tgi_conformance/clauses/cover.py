"""Granted blocks cover every position that a step can write, and a step writes nowhere else."""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.calls import Decode, Prefill
from tgi_conformance.clause import clause
from tgi_conformance.scene import Scene
from tgi_conformance.stage import Stage
from tgi_conformance.verdict import Level
from tgi_core.backend import NULL_BLOCK, Grant, InvalidRequest


def block_size(stage: Stage) -> int:
    """Of the first group."""
    return stage.capacity.groups[0].block_size


def up_to_the_edge(stage: Stage, short: int = 0) -> tuple[int, ...]:
    """A prompt that fills one block, less `short` tokens."""
    return stage.varied(range(7, 7 + max(1, block_size(stage) - short)))


@clause("cover.prefill", "A request whose blocks do not cover the positions of its step is an InvalidRequest.", Level.L1)
def prefill(scene: Scene) -> None:
    """None at all; one too few."""
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
    """At the edge of a block; with the block granted it goes on."""
    stage = scene.stage()
    size = stage.capacity.groups[0].block_size
    if size >= stage.capacity.max_row_tokens:
        return _whole_row_block(stage)
    batch = stage.start(stage.request(up_to_the_edge(stage)))
    stage.refuse(InvalidRequest, Decode((batch,)))
    stage.decode(batch, steps=2)
    return None


def _whole_row_block(stage: Stage) -> None:
    """With slots for blocks the last position is covered by the first block, so only a missing slot can be refused."""
    request = stage.request(stage.prompts[0])
    stage.refuse(InvalidRequest, Prefill((replace(request, blocks=tuple(() for _ in request.blocks)),)))
    stage.decode(stage.start(request))


@clause("cover.block-ids", "Block ids are 1…num_blocks: the null block and others outside are an InvalidRequest.", Level.L1)
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


@clause("cover.distinct", "A block that stands twice in a row's table is an InvalidRequest.", Level.L1)
def distinct(scene: Scene) -> None:
    """Twice in a request; twice in a grant; in a grant and in the table."""
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
    """One group too many, and none at all in the request."""
    stage = scene.stage()
    request = stage.request(stage.prompts[0])
    stage.refuse(InvalidRequest, Prefill((replace(request, blocks=()),)))
    stage.refuse(InvalidRequest, Prefill((replace(request, blocks=(*request.blocks, (1,))),)))
    batch = stage.start(request)
    stage.refuse(InvalidRequest, Decode((batch,), (Grant(request.id, 1, ((),) * (len(request.blocks) + 1)),)))
    stage.decode(batch)


@clause(
    "cover.neighbours",
    "A step writes into the blocks of its own rows and nowhere else.",
    Level.L1,
    needs=("paging",),
    situations=("a row grows by a block",),
    rows=4,
)
def neighbours(scene: Scene) -> None:
    """Rows whose blocks lie side by side fill them to the edge and cross it, in turn and together."""
    stage = scene.stage()
    edge = up_to_the_edge(stage, short=1)
    prompts = (edge, (*edge, 5), (*edge, 5, 6), (9, *edge[1:]))
    batches = [stage.start(stage.request(prompt, want=stage.wants)) for prompt in prompts]
    batches = [stage.decode(batch, steps=3) for batch in batches]
    stage.decode(*batches, steps=block_size(stage) + 1)
