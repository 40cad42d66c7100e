"""Going over a promised limit raises CapacityExceeded and admits nothing; places that rows give back can be used again."""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.calls import Decode, Prefill
from tgi_conformance.clause import clause
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.verdict import DoesNotApply, Level, NotReached
from tgi_core.backend import CapacityExceeded, Request

_MOST = 512
"""Most rows that the suite fills a session with."""


def fill(stage: Stage, count: int) -> list[Request]:
    """Return `count` one-token requests. Raises NotReached above the suite's own limit."""
    if count > _MOST:
        raise NotReached(f"the backend promises {count} rows although few were asked for; the suite fills at most {_MOST}")
    return [stage.request((index % 40 + 1,)) for index in range(count)]


@clause(
    "capacity.rows",
    "Exceeding max_rows by one raises CapacityExceeded and admits nothing.",
    Level.L1,
    situations=("prefill refused",),
)
def rows(scene: Scene) -> None:
    """One row too many in a single prefill; then one more next to a full session; a newcomer takes the place of a row that left."""
    stage = scene.stage()
    limit = stage.capacity.max_rows
    requests = fill(stage, limit)
    beyond = replace(requests[0], id=888_888)
    stage.refuse(CapacityExceeded, Prefill((*requests, beyond)))
    at_once = min(limit, stage.capacity.max_step_tokens)
    batch = stage.start(*requests[:at_once])
    if at_once == limit:
        stage.refuse(CapacityExceeded, Prefill((beyond,)))
        batch = stage.filter(batch, [request.id for request in requests[1:]])
        newcomer = stage.start(stage.request((5,)))
    stage.decode(batch or newcomer, steps=2)


@clause("capacity.step-tokens", "Exceeding max_step_tokens by one token in a step raises CapacityExceeded.", Level.L1)
def step_tokens(scene: Scene) -> None:
    """Several prompts that exceed the limit together but fit one at a time."""
    stage = scene.stage()
    sizes = _one_too_many(stage, min(stage.capacity.max_row_tokens, stage.capacity.max_step_tokens))
    requests = [stage.request(stage.varied((3 * index + size) % 50 for index in range(size))) for size in sizes]
    stage.refuse(CapacityExceeded, Prefill(tuple(requests)))
    for request in requests:
        stage.start(request)


def _one_too_many(stage: Stage, longest: int) -> list[int]:
    """Return takes of up to `longest` tokens that exceed max_step_tokens by one and no other limit. Raises DoesNotApply."""
    sizes: list[int] = []
    left = stage.capacity.max_step_tokens + 1
    while left > 0 and len(sizes) < stage.capacity.max_rows:
        sizes.append(min(left, longest) if len(sizes) < stage.capacity.max_prefill_rows else 1)
        left -= sizes[-1]
    if left > 0:
        raise DoesNotApply(
            f"max_rows, max_prefill_rows and max_row_tokens never allow a step to exceed max_step_tokens {sum(sizes) + left - 1}"
        )
    return sizes


@clause(
    "capacity.prefill-rows",
    "Exceeding max_prefill_rows by one row that takes more than one token raises CapacityExceeded.",
    Level.L1,
)
def prefill_rows(scene: Scene) -> None:
    """Two-token prompts only; then exactly max_prefill_rows of them, together with a one-token prompt."""
    promised = scene.declared[1]
    limit = promised.max_prefill_rows
    if limit >= promised.max_rows or 2 * limit + 2 > promised.max_step_tokens:
        raise DoesNotApply(f"max_rows and max_step_tokens never allow a step to exceed max_prefill_rows {limit}")
    stage = scene.stage()
    requests = [stage.request((index % 40 + 1, 2)) for index in range(limit)]
    stage.refuse(CapacityExceeded, Prefill((*requests, stage.request((5, 3)))))
    stage.decode(stage.start(*requests, stage.request((7,))), steps=2)


@clause(
    "capacity.merge-tokens",
    "A merge whose rows take more than max_step_tokens raises CapacityExceeded, and every batch stays alive.",
    Level.L1,
    needs=("chunked_prefill",),
)
def merge_tokens(scene: Scene) -> None:
    """Long prompts begun in separate batches, each of which fits alone."""
    stage = scene.stage()
    sizes = _one_too_many(stage, min(stage.capacity.max_row_tokens - 3, stage.capacity.max_step_tokens))
    requests = [
        stage.request(stage.varied((5 * index + shift) % 50 for index in range(size + 1)), take=1)
        for shift, size in enumerate(sizes)
    ]
    batches = [stage.start(request) for request in requests]
    grants = [stage.grant(stage.row(request.id), size) for request, size in zip(requests, sizes, strict=True)]
    stage.refuse(CapacityExceeded, Decode(tuple(batches), tuple(grants)))
    for batch, grant in zip(batches, grants, strict=True):
        stage.decode(batch, grants=[grant])


@clause(
    "capacity.returns",
    "A row's place is free again, whichever way the row left.",
    Level.L1,
    situations=("everything is cleared", "a row leaves"),
)
def returns(scene: Scene) -> None:
    """Fill the session repeatedly, and empty it by filter, by clearing the batch, and by clearing everything."""
    stage = scene.stage()
    limit = min(stage.capacity.max_rows, stage.capacity.max_step_tokens)
    for way in range(6):
        batch = stage.start(*fill(stage, limit))
        if way % 3 == 0:
            batch = stage.decode(batch)
        rows = [row.request.id for row in stage.play.oracle.rows]
        if way % 2:
            batch = stage.filter(batch, rows[: len(rows) // 2])
        if not batch:
            continue
        if way < 2:
            stage.filter(batch, ())
        else:
            stage.clear(batch if way % 2 else None)
    stage.decode(stage.start(*(stage.request(prompt) for prompt in stage.prompts[: min(limit, 3)])), steps=2)
