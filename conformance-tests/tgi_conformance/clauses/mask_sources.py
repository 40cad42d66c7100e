"""Mask sources with requirements: on whose mask it is, its bits, time, threads, when they are asked, and which tokens they receive."""

from __future__ import annotations

from tgi_conformance.clause import clause
from tgi_conformance.clauses.chunked_prefill import finish
from tgi_conformance.golden import default_model
from tgi_conformance.masks import OWN, SLOW, allows, phase
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.session_setup import Setup
from tgi_conformance.target import mixed_plan
from tgi_conformance.verdict import Level, Violation
from tgi_core.backend import Request

_VOCAB_SIZE = 236
"""29.5 bytes of bits, so 8 words with 2 bytes to spare: masks read at the wrong offset are of another phase."""


def masked_rows(stage: Stage, count: int) -> list[Request]:
    """Masked rows, as many as there is room for; their masks are of different phases."""
    room = min(count, stage.capacity.max_rows)
    return [stage.request(stage.prompts[index % 6], masked=True, want=stage.wants) for index in range(room)]


def obeyed(stage: Stage, requests: list[Request]) -> None:
    """Check that every token is allowed by the mask of its own request. Raises Violation."""
    masks = stage.play.masks
    for request in requests:
        tokens, shift = stage.play.tokens(request.id), phase(masks.kind if masks else None, request.id)
        if not all(allows(index, token, shift) for index, token in enumerate(tokens)):
            raise Violation("masks", f"row {request.id} made {tokens}, which its own mask forbids")


@clause(
    "masks.own",
    "A row is masked by its own request's mask, though its mates are as old as it is.",
    Level.L2,
    needs=("masks",),
    rows=2,
)
def own(scene: Scene) -> None:
    """Rows of the same age with different masks; the first leaves, another joins, two batches merge in reverse order."""
    stage = scene.stage(masks=OWN)
    requests = masked_rows(stage, 4)
    batch = stage.decode(stage.start(*requests), steps=2)
    batch = stage.filter(batch, [request.id for request in requests[1:]])
    late = masked_rows(stage, 1)
    stage.decode(stage.start(*late), batch, steps=3)
    obeyed(stage, [*requests, *late])


@clause(
    "masks.layout",
    "The masks of a step are packed bits, row after row, each of whole 32-bit little-endian words.",
    Level.L1,
    needs=("masks",),
    since=(1, 2),
    rows=2,
)
def layout(scene: Scene) -> None:
    """Rows of different masks; the suite's own model has a vocabulary here that leaves the last bytes of each row empty."""
    own = scene.target.model == default_model(scene.target.device_kind)
    stage = Stage(scene.play(Setup(masks=OWN, vocab_size=_VOCAB_SIZE if own else None)), scene.seed)
    requests = masked_rows(stage, 4)
    stage.decode(stage.start(*requests), steps=6)
    obeyed(stage, requests)


@clause(
    "masks.complete-prompts",
    "The mask source is asked only for rows that are about to generate a token, not for those whose prompt is incomplete.",
    Level.L1,
    needs=("masks", "chunked_prefill"),
    situations=("a prompt begins in part", "a prompt goes on"),
    since=(1, 2),
    rows=2,
)
def complete_prompts(scene: Scene) -> None:
    """A prompt in chunks, next to a row that makes tokens."""
    stage = scene.stage(mixed_plan(scene.declared[0].block_sizes), OWN, shared=True)
    running, chunked = stage.request(stage.prompts[0], masked=True), stage.request(stage.prompts[2], take=2, masked=True)
    step = stage.start(running, chunked)
    stage.decode(finish(stage, step, chunked.id, 2), steps=2)
    obeyed(stage, [running, chunked])


@clause(
    "masks.slow",
    "A mask source may take its time: no token is generated before its mask is there.",
    Level.L2,
    needs=("masks",),
    rows=2,
)
def slow(scene: Scene) -> None:
    """Rows of different masks, a step launched ahead where that is promised."""
    stage = scene.stage(masks=SLOW)
    requests = masked_rows(stage, 2)
    batch = stage.start(*requests)
    _ahead(stage, batch, 2)
    obeyed(stage, requests)


@clause(
    "masks.one-thread",
    "The mask source is called by one thread at a time.",
    Level.L2,
    needs=("masks",),
    rows=2,
)
def one_thread(scene: Scene) -> None:
    """A batch of masked rows, with a source that is slow enough for a second thread to call it at the same time."""
    stage = scene.stage(masks=SLOW)
    requests = masked_rows(stage, 3)
    stage.decode(stage.start(*requests))
    obeyed(stage, requests)


@clause(
    "masks.told-ahead",
    "The mask source is told each row's own newest token, though the step that made it is not read.",
    Level.L2,
    needs=("masks", "run_ahead"),
    situations=("a step is launched ahead", "a row leaves"),
    rows=2,
)
def told_ahead(scene: Scene) -> None:
    """Steps launched ahead; then a row leaves, so that the others change places, and steps are launched ahead again."""
    stage = scene.stage(masks=OWN)
    requests = masked_rows(stage, 4)
    batch = _ahead(stage, stage.start(*requests), 3)
    batch = stage.filter(batch, [request.id for request in requests[1:]])
    _ahead(stage, batch, 3)
    obeyed(stage, requests)


def _ahead(stage: Stage, batch: int, steps: int) -> int:
    """Launch steps as far ahead as promised, and read them all in the end."""
    unread: list[int] = []
    for _ in range(steps):
        batch = stage.go_on(batch)
        unread.append(batch)
        if len(unread) >= stage.capacity.in_flight:
            stage.read(unread.pop(0))
    for step in unread:
        stage.read(step)
    return batch
