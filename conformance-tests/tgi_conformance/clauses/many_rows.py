"""Many rows, high block ids, many removals: what holds for six rows on a few blocks holds for as many as a backend promises.

The clauses ask for large limits, and try whatever smaller ones a backend promises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice

from tgi_conformance.calls import Decode, Ref
from tgi_conformance.clause import clause
from tgi_conformance.clauses.feature_combinations import Company, Spec, company
from tgi_conformance.clauses.invariant import invariant_stages
from tgi_conformance.clauses.mates import ways
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.target import OWNED_TOKENS, WIDE_ROWS, small_plan
from tgi_conformance.verdict import Level, NotReached
from tgi_core.backend import Grant, Mixing, OutOfMemory, Request, UnknownBatch

_DIFFERENT = 25
"""Number of different requests; later ones repeat them, so they need no further run alone."""
_HALF, _ROOM, _SHORT = 33, 20, 28
"""Rows that start first, and positions that rows may reach: those of `crowd`, and those of every kind."""


def crowd(stage: Stage, first: int, count: int) -> list[Request]:
    """Build up to `count` requests, sampled in all ways, as many as fit. Raises NotReached."""
    promised = stage.capacity
    length = min(7, promised.max_row_tokens - 12)
    if length < 3:
        raise NotReached(f"rows of {promised.max_row_tokens} tokens are too short for this traffic")
    blocks = min(len(stage.free(index)) // -(-_ROOM // group.block_size) for index, group in enumerate(promised.groups))
    room = min(min(promised.max_rows, promised.max_step_tokens) - len(stage.play.oracle.rows), blocks)
    hows = ways(stage)
    return [
        stage.request(_prompt(stage, number)[:length], hows[number % len(hows)], want=stage.wants)
        for number in (index % _DIFFERENT for index in range(first, first + min(count, room)))
    ]


def _prompt(stage: Stage, number: int) -> tuple[int, ...]:
    """Return a prompt by number; no two begin alike, and lengths are mixed."""
    return (*stage.varied((number, 7)), *stage.prompts[number % 6][: number % 5])


def come_and_go(scene: Scene, stage: Stage) -> None:
    """Add rows until the session is full, remove some throughout the batch, and let others take their places."""
    first = crowd(stage, 0, _HALF)
    batch = stage.decode(stage.start(*first), steps=2)
    second = crowd(stage, _HALF, WIDE_ROWS - _HALF)
    if second:
        batch = stage.decode(batch, stage.start(*second), steps=2)
    rows = [*first, *second]
    scene.figures["rows at once"] = max(len(rows), scene.figures.get("rows at once", 0))
    stay = [request.id for number, request in enumerate(rows) if number % 3 or len(rows) < 3]
    batch = stage.decode(stage.filter(batch, stay), steps=2)
    if third := crowd(stage, WIDE_ROWS, len(rows) - len(stay)):
        batch = stage.decode(stage.start(*third), batch, steps=2)
    stage.decode(stage.filter(batch, [*stay[-1:], *(request.id for request in third[-1:])]))


@clause(
    "mates.wide",
    "The reported maximum of rows generates the tokens that each row generates alone, through merges and removals.",
    Level.L2,
)
def wide(scene: Scene) -> None:
    """66 rows of every kind: all at once, then some leave and others join repeatedly; in the end all are cleared."""
    here = company(scene)
    stage, kinds = here.stage, cycle(enumerate(here.everyone(), 1))
    room = _short_rows(stage)
    scene.figures["rows at once"] = room
    owner = _owner(here)
    first = sorted(
        islice(kinds, room - 1), key=lambda item: item[1].shares and item[1].sampling.do_sample
    )  # such a row is the last
    batch = _joined(here, first, stage.start(owner), owner)
    for exactly in (64, 32, 16, 8):
        batch = _reduced(here, batch, exactly, kinds, owner)
        batch = _joined(here, list(islice(kinds, room - len(stage.play.oracle.rows))), batch, owner)
        rows_now = enumerate(stage.play.oracle.batches[batch])
        used = stage.decode(batch, grants=[Grant(row.request.id, 0) if n % 2 else stage.grant(row) for n, row in rows_now])
        batch = stage.decode(used)
        stage.refuse(UnknownBatch, Decode((batch, used)))
        stage.refuse(UnknownBatch, Decode((used,)))
    for step in [batch := stage.go_on(batch) for _ in range(stage.capacity.in_flight)]:
        stage.read(step)
    _clear_beside_another(stage, batch)
    whole = [(number, replace(spec, chunk=0)) for number, spec in islice(kinds, room)]
    batch = stage.start(*_short_requests(here, whole))
    stage.filter(batch, [row.request.id for row in stage.play.oracle.batches[batch][1:]])
    stage.clear(None)
    here.check_formula()


def _reduced(here: Company, batch: Ref, exactly: int, kinds: Iterator[tuple[int, Spec]], owner: Request) -> Ref:
    """Remove rows throughout the batch and let a few join, so that both a step with new rows and a decode have an exact number."""
    stage = here.stage
    rows = [row.request.id for row in stage.play.oracle.batches[batch]]
    joining = min(3, exactly // 2)
    keep = min(exactly - joining, max(1, len(rows) // 2 if len(rows) <= exactly else len(rows)))
    batch = stage.filter(batch, [rows[index * len(rows) // keep] for index in range(keep)])
    return stage.decode(_joined(here, list(islice(kinds, min(joining, len(rows) - keep))), batch, owner))


def _clear_beside_another(stage: Stage, batch: Ref) -> None:
    """Let a batch's last row make way for one of another batch, which stays when the first is cleared."""
    rows = [row.request.id for row in stage.play.oracle.batches[batch]]
    if len(rows) == 1:
        stage.clear(batch)
        return
    batch = stage.filter(batch, rows[:-1])
    beside = stage.start(stage.request(stage.prompts[0][:3]))
    stage.clear(stage.decode(batch))
    stage.filter(stage.decode(beside), ())


def _short_rows(stage: Stage) -> int:
    """Return how many rows of a few tokens fit, one of them with a whole block more. Raises NotReached."""
    promised = stage.capacity
    blocks = min((group.num_blocks - 2) // -(-_SHORT // group.block_size) for group in promised.groups)
    room = min(promised.max_rows, promised.max_step_tokens, WIDE_ROWS, blocks)
    if room < 1 or promised.max_row_tokens < _SHORT:
        raise NotReached(f"{room} rows of {promised.max_row_tokens} tokens are too few or too short for this traffic")
    return room


def _owner(here: Company) -> Request:
    """Build a plain request whose first two blocks, or first block, others can reuse, if a row has room for that."""
    stage = here.stage
    size = stage.capacity.groups[0].block_size
    most = min(stage.capacity.max_row_tokens, stage.capacity.max_step_tokens) - OWNED_TOKENS
    return here.request(Spec(want=here.full), 2 * size + 1 if 2 * size < most else size + 1 if size < most else 2)


def _joined(here: Company, specs: Sequence[tuple[int, Spec]], batch: Ref, owner: Request | None = None) -> Ref:
    """Start numbered rows with short prompts, those that reuse a prefix behind the owner's first block, and let them join the batch."""
    stage, requests = here.stage, _short_requests(here, specs, owner)
    if requests and stage.capabilities.mixing is not Mixing.NONE:
        batch = stage.start(*requests, beside=batch)
    elif requests:
        batch = stage.decode(batch, stage.start(*requests))
    return here.finished(batch, {request.id: request.take for request in requests})


def _short_requests(here: Company, specs: Sequence[tuple[int, Spec]], owner: Request | None = None) -> list[Request]:
    """Build numbered requests that fit one step; the last one and those beyond max_prefill_rows have one token to run."""
    size, long, requests = here.stage.capacity.groups[0].block_size, here.stage.capacity.max_prefill_rows, list[Request]()
    for place, (number, spec) in enumerate(specs):
        several = place < min(long, len(specs) - 1)
        length, tail = (2 + number % 7, 3) if several else (1, 1)
        kind = spec if several else replace(spec, chunk=0, made=0)
        if spec.shares and owner is not None and len(owner.tokens) > size:
            whole = len(owner.tokens) // size
            requests.append(here.sharer(replace(kind, adapter=None), owner, size * (1 + number % whole), tail))
        else:
            requests.append(here.request(kind, length, number))
    return requests


@clause(
    "invariant.wide",
    "Tokens and logprobs are the same bits among the reported maximum of rows.",
    Level.L2,
    needs=("batch_invariant",),
)
def wide_bits(scene: Scene) -> None:
    """The same traffic, in every dtype that opens."""
    for stage in invariant_stages(scene):
        come_and_go(scene, stage)


_BLOCKS, _BYTES = 70_000, 600_000_000
"""Blocks to ask for, more than 16-bit ids can count, and the most bytes that they may take."""


@clause("cover.high-blocks", "Every block id works alike, up to the last of a large cache.", Level.L1)
def high_blocks(scene: Scene) -> None:
    """Rows on the first block, on the last, and on blocks whose ids differ in a single high bit."""
    stage = _large_cache(scene)
    last = stage.capacity.groups[0].num_blocks
    scene.figures["block ids"] = last
    far = [*(1 + (1 << bit) for bit in range(16, 6, -1) if 1 + (1 << bit) <= last), last]
    rows = min(stage.capacity.max_rows, stage.capacity.max_step_tokens, len(far) + 1)
    batches = []
    for index, block in enumerate([1, *far][:rows]):
        if block in stage.free(0):
            stage.prefer([block])
            prompt = stage.prompts[index % len(stage.prompts)][:3]
            batches.append(stage.start(stage.request(prompt, want=stage.wants)))
    for _ in range(2):
        batches = [stage.decode(batch) for batch in batches]
    stage.decode(*batches, steps=2)


def _large_cache(scene: Scene) -> Stage:
    """Open a session with as many blocks as the byte limit allows, judging by the bytes of a small cache; with fewer if memory
    runs out."""
    small = scene.stage()
    cache = sum(share.num_bytes for share in small.capacity.memory if share.name == "kv cache")
    plan = small_plan(scene.declared[0].block_sizes)
    least = small.capacity.groups[0].num_blocks
    blocks = max(least, min(_BLOCKS, _BYTES // max(1, cache // least)))
    while True:
        try:
            return scene.stage(replace(plan, max_rows=12, num_blocks=blocks))
        except OutOfMemory:
            if blocks <= least:
                raise
            blocks = max(least, blocks // 2)


_REMOVALS = 1001


@clause("capacity.thousand", "A place works as well after a thousand rows have used it as it did at first.", Level.L1)
def thousand(scene: Scene) -> None:
    """Fill the session again and again, and empty it by filter, by clearing the batch, and by clearing everything."""
    stage = scene.stage()
    rows = min(stage.capacity.max_rows, stage.capacity.max_step_tokens)
    removed = 0
    while removed <= _REMOVALS:
        count = 1 + removed % rows if removed % 7 == 0 else rows
        requests = [stage.request(stage.prompts[(removed + index) % 6][:4]) for index in range(count)]
        batch = stage.start(*requests)
        if removed % 3 == 0:
            batch = stage.filter(stage.decode(batch), [request.id for request in requests[::2]])
        if removed % 2:
            stage.filter(batch, ())
        else:
            stage.clear(None if removed % 4 else batch)
        removed += count
    scene.figures["rows removed"] = removed
    requests = [stage.request(prompt[:4], want=stage.wants) for prompt in stage.prompts[:rows]]
    stage.decode(stage.start(*requests), steps=3)
