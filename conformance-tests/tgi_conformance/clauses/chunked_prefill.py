"""Prompts in chunks, new rows next to running ones, and cached prefixes: none of them changes a token."""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.calls import Decode, Prefill
from tgi_conformance.clause import clause
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.target import prefix_plan
from tgi_conformance.verdict import DoesNotApply, Level, NotReached
from tgi_core.backend import Grant, InvalidRequest, Mixing, Request, UnknownRequest, Unsupported

LONG = tuple((5 * index + index // 3) % 50 for index in range(23))
"""A prompt long enough to split."""


def finish(stage: Stage, batch: int, id: int, chunk: int) -> int:
    """Run the rest of a prompt in chunks while other rows continue."""
    while stage.row(id).owed:
        row = stage.row(id)
        grants = [stage.grant(row, min(chunk, row.owed))]
        grants += [stage.grant(mate) for mate in stage.play.oracle.batches[batch] if not mate.owed]
        batch = stage.decode(batch, grants=grants)
    return batch


@clause(
    "chunks.tokens",
    "A prompt in chunks generates the tokens of the same prompt in one piece, and none before it is complete.",
    Level.L2,
    needs=("chunked_prefill",),
    situations=("a prompt begins in part", "a prompt goes on"),
)
def chunks(scene: Scene) -> None:
    """In chunks of many sizes, with everything a row can return."""
    for chunk in (1, 2, 3, 5, 7, 16):
        stage = scene.stage()
        request = stage.request(stage.varied(LONG), take=chunk, want=stage.wants)
        stage.decode(finish(stage, stage.start(request), request.id, chunk), steps=3)


@clause(
    "chunks.rest",
    "A row whose prompt is incomplete sits out unless its next chunk is granted.",
    Level.L1,
    needs=("chunked_prefill",),
    situations=("a row sits out", "a prompt goes on"),
    rows=2,
)
def rest(scene: Scene) -> None:
    """It waits while its batch mate decodes, then continues."""
    stage = scene.stage()
    waits, mate = stage.request(stage.varied(LONG), take=5), stage.request(stage.prompts[0])
    batch = stage.start(waits, mate)
    for _ in range(3):
        batch = stage.decode(batch, grants=[stage.grant(stage.row(mate.id))])
    stage.decode(finish(stage, batch, waits.id, 6), steps=2)


@clause("chunks.too-much", "A chunk is never longer than the rest of the prompt.", Level.L1, needs=("chunked_prefill",))
def too_much(scene: Scene) -> None:
    """One token more is an InvalidRequest; exactly the rest is accepted."""
    stage = scene.stage()
    request = stage.request(stage.varied(LONG), take=5)
    batch = stage.start(request)
    room = stage.grant(stage.row(request.id), len(LONG) - 4)
    stage.refuse(InvalidRequest, Decode((batch,), (room,)))
    stage.decode(batch, steps=2, grants=[Grant(request.id, len(LONG) - 5, room.blocks)])


@clause(
    "chunks.leave",
    "A row may leave while its prompt is incomplete.",
    Level.L1,
    needs=("chunked_prefill",),
    situations=("a row leaves",),
    rows=2,
)
def leave(scene: Scene) -> None:
    """A newcomer gets its blocks."""
    stage = scene.stage()
    leaves, stays = stage.request(stage.varied(LONG), take=9), stage.request(stage.prompts[0])
    batch = stage.filter(stage.start(leaves, stays), [stays.id])
    stage.refuse(UnknownRequest, Decode((batch,), (Grant(leaves.id, 1),)))
    stage.decode(batch, stage.start(stage.request(stage.prompts[5])), steps=3)


@clause(
    "chunks.apart",
    "A session that does not mix refuses a chunk of a prompt next to a row that decodes, and runs it while that row sits out.",
    Level.L1,
    needs=("chunked_prefill",),
    situations=("a row sits out", "a prompt goes on"),
    rows=2,
    since=(1, 2),
)
def apart(scene: Scene) -> None:
    """In the step that merges their batches, then in one batch, where the last chunk is a single token."""
    if scene.declared[0].mixing is not Mixing.NONE:
        raise DoesNotApply("this session mixes prompts and rows that decode")
    stage = scene.stage()
    decodes, begun = stage.request(stage.prompts[0]), stage.request(stage.varied(LONG), take=5)
    batches = [stage.start(decodes), stage.start(begun)]
    for take in (len(LONG) - 6, 1):
        chunk, token = stage.grant(stage.row(begun.id), take), stage.grant(stage.row(decodes.id))
        stage.refuse(Unsupported, Decode(tuple(batches), (chunk, token)))
        batches = [stage.decode(*batches, grants=[chunk, replace(token, take=0)])]
    stage.decode(*batches, steps=3)


@clause(
    "mixing.tokens",
    "New rows that join a running batch in one step change no token, neither theirs nor the others'.",
    Level.L2,
    needs=("mixing",),
    situations=("rows join a batch",),
    rows=4,
)
def mixing(scene: Scene) -> None:
    """Rows join one at a time, and two at a time."""
    stage = scene.stage()
    batch = stage.start(stage.request(stage.prompts[0], want=stage.wants))
    batch = stage.start(stage.request(stage.prompts[1], want=stage.wants), beside=batch)
    batch = stage.start(stage.request(stage.prompts[2], want=stage.wants), stage.request(stage.prompts[3]), beside=batch)
    stage.decode(batch, steps=5)


@clause(
    "mixing.chunks",
    "Chunks of new prompts run in the same steps as rows that decode.",
    Level.L2,
    needs=("mixing", "chunked_prefill"),
    situations=("rows join a batch", "a prompt goes on"),
    rows=3,
)
def mixing_chunks(scene: Scene) -> None:
    """A long prompt joins in chunks; another joins while the first is incomplete; one sits out the join."""
    stage = scene.stage()
    old, new = stage.request(stage.prompts[0], want=stage.wants), stage.request(stage.varied(LONG), take=4, want=stage.wants)
    batch = stage.start(new, beside=stage.start(old))
    last = stage.request(stage.prompts[1][: None if stage.capacity.max_prefill_rows > 1 else 1], want=stage.wants)
    batch = stage.start(last, beside=batch, grants=[stage.grant(stage.row(new.id), 7), Grant(old.id, 0)])
    stage.decode(finish(stage, batch, new.id, 5), steps=3)


def _sharing(stage: Stage, first: Request, cached: int, tail: tuple[int, ...], take: int | None = None) -> Request:
    want = replace(stage.wants, prompt_logprobs=False)
    return stage.request((*first.tokens[:cached], *tail), take=take, want=want, cached=cached, shares=first)


@clause(
    "prefix.tokens",
    "A request may start behind blocks that another row filled, and generates the tokens it generates without them.",
    Level.L2,
    needs=("prefix_reuse",),
    situations=("a prefix is reused",),
    rows=4,
)
def prefix(scene: Scene) -> None:
    """Two requests share the prefix while its owner lives and decodes; the owner leaves, and its prefix is still read."""
    stage = scene.stage(prefix_plan(scene.declared[0].block_sizes))
    size = stage.capacity.groups[0].block_size
    if 2 * size + 10 > stage.capacity.max_row_tokens:
        raise NotReached(f"a prefix of whole {size}-token blocks does not fit a row of {stage.capacity.max_row_tokens} tokens")
    owner = stage.request(stage.varied((3 * index + 1) % 50 for index in range(2 * size + 2)), want=stage.wants)
    batch = stage.start(owner)
    first = stage.start(_sharing(stage, owner, size, (8, 9, 7)))
    second = stage.start(_sharing(stage, owner, 2 * size, (4,)), _sharing(stage, owner, 2 * size, owner.tokens[2 * size :]))
    batch = stage.decode(batch, first, second, steps=2)
    others = [row.request.id for row in stage.play.oracle.rows if row.request.id != owner.id]
    stage.keep_blocks(owner.id)
    stage.decode(stage.filter(batch, others), steps=3)


@clause(
    "prefix.chunks",
    "A request behind a prefix may run the rest of its prompt in chunks.",
    Level.L2,
    needs=("prefix_reuse", "chunked_prefill"),
    situations=("a prefix is reused", "a prompt goes on"),
    rows=2,
)
def prefix_chunks(scene: Scene) -> None:
    """A one-block prefix, then chunks of two tokens."""
    stage = scene.stage(prefix_plan(scene.declared[0].block_sizes))
    size = stage.capacity.groups[0].block_size
    if size + 12 > stage.capacity.max_row_tokens:
        raise NotReached(f"a prefix of one {size}-token block does not fit a row of {stage.capacity.max_row_tokens} tokens")
    owner = stage.request(stage.varied((7 * index + 2) % 50 for index in range(size + 1)))
    stage.start(owner)
    sharer = _sharing(stage, owner, size, (1, 2, 3, 4, 5), take=2)
    stage.decode(finish(stage, stage.start(sharer), sharer.id, 2), steps=3)


@clause("prefix.range", "A cached prefix leaves at least one token to run.", Level.L1, needs=("prefix_reuse",))
def prefix_range(scene: Scene) -> None:
    """A fully cached prompt is an InvalidRequest."""
    stage = scene.stage()
    request = stage.request(stage.prompts[0])
    stage.start(request)
    for cached in (len(request.tokens), len(request.tokens) + 3):
        wrong = replace(stage.request(stage.prompts[0]), cached=cached, take=1)
        stage.refuse(InvalidRequest, Prefill((wrong,)))
