"""Window groups: blocks that a row no longer sees go to other rows while it runs, and the null block takes their place in new tables."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from tgi_conformance.calls import Prefill, Ref
from tgi_conformance.clause import clause
from tgi_conformance.clauses.speculation import most, open_drafting, right, spoiled, step, texts
from tgi_conformance.oracle import left_behind
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.target import MAX_ROWS, plan_of
from tgi_conformance.verdict import Level, NotReached
from tgi_core.backend import NULL_BLOCK, CacheGroup, CacheKind, InvalidRequest, Request, WarmupPlan

_LONGEST = 1024
"""Tokens of the longest rows that are tried."""


def _group(stage: Stage) -> tuple[int, CacheGroup]:
    """Return the window group with the smallest window, and its place."""
    groups = [(index, group) for index, group in enumerate(stage.capacity.groups) if group.kind is CacheKind.WINDOW]
    return min(groups, key=lambda item: item[1].window or _LONGEST)


def _plan(scene: Scene) -> WarmupPlan:
    """Return a plan for rows that leave several blocks behind. Raises NotReached."""
    groups = [group for group in scene.declared[1].groups if group.kind is CacheKind.WINDOW and group.window is not None]
    window = min(group.window or _LONGEST for group in groups)
    length = window + 6 * max(group.block_size for group in groups) + 8
    if length > min(_LONGEST, scene.declared[0].max_positions):
        raise NotReached(f"rows of {length} tokens, which leave a window of {window} behind, are too long for the suite")
    return plan_of(scene.declared[0].block_sizes, MAX_ROWS, length, length)


def _long(stage: Stage, blocks: int, turn: int = 1) -> tuple[int, ...]:
    """Return a prompt of the window and some blocks, which ends with a block."""
    _, group = _group(stage)
    size = group.block_size
    length = -(-(group.window or 0) // size) * size + blocks * size
    return stage.varied((turn * index + index // 5) % 50 for index in range(length))


def _decode(stage: Stage, batch: Ref, steps: int) -> Ref:
    """Run steps, as many ahead as the session allows; before each one, what rows have left behind is handed out anew."""
    unread: deque[Ref] = deque()
    for _ in range(steps):
        stage.take_back()
        unread.append(batch := stage.go_on(batch))
        if len(unread) >= stage.capacity.in_flight:
            stage.read(unread.popleft())
    while unread:
        stage.read(unread.popleft())
    return batch


@clause(
    "windows.reuse",
    "A block of a window group that a row no longer sees may be granted to any row in the same step.",
    Level.L1,
    needs=("windows", "paging"),
    situations=("a row grows by a block",),
    rows=3,
    since=(1, 8),
)
def reuse(scene: Scene) -> None:
    """Rows beyond their window exchange the blocks that they leave behind, or get their own back, with steps in flight."""
    stage = scene.stage(_plan(scene))
    size = _group(stage)[1].block_size
    prompts = (_long(stage, 1), _long(stage, 1, 3), _long(stage, 2, 7)[1:])
    batch, steps = stage.start(*(stage.request(prompt, want=stage.wants) for prompt in prompts)), 2 * size + 1
    batch = _decode(stage, batch, steps)
    newcomer = stage.request(stage.prompts[1], want=stage.wants)
    stage.take_back()
    _decode(stage, batch if stage.capacity.max_rows < 4 else stage.decode(stage.start(newcomer), batch), size)


@clause(
    "windows.itself",
    "A row may get back a block that it has left behind.",
    Level.L1,
    needs=("windows", "paging"),
    situations=("a row grows by a block",),
    since=(1, 8),
)
def itself(scene: Scene) -> None:
    """Alone, so that each new block is the one that the row left last."""
    stage = scene.stage(_plan(scene))
    request = stage.request(_long(stage, 1), want=stage.wants)
    _decode(stage, stage.start(request), 3 * _group(stage)[1].block_size + 1)
    if request.id not in stage.thinned:
        raise NotReached("the row has left no block behind")


@clause(
    "windows.prompt",
    "A prompt in chunks leaves blocks behind while it runs, which its own next chunks and other rows use.",
    Level.L2,
    needs=("windows", "paging", "chunked_prefill"),
    situations=("a prompt goes on",),
    rows=2,
    since=(1, 8),
)
def prompt(scene: Scene) -> None:
    """A prompt of several blocks more than the window, in chunks of many sizes, next to a row that decodes in between."""
    stage = scene.stage(_plan(scene))
    size = _group(stage)[1].block_size
    for chunk in (size, size // 2 + 1, 2 * size + 1):
        mate = stage.request(stage.prompts[0], want=stage.wants)
        long = stage.request(_long(stage, 4), take=chunk, want=stage.wants)
        batch = stage.decode(stage.start(mate), stage.start(long))
        while (row := stage.row(long.id)).owed:
            stage.take_back()
            batch = stage.decode(batch, grants=[stage.grant(row, min(chunk, row.owed)), stage.grant(stage.row(mate.id))])
        stage.filter(_decode(stage, batch, 2), ())


@clause(
    "windows.null",
    "A request behind a prefix has the null block in the places that it does not see, and nowhere else.",
    Level.L2,
    needs=("windows", "paging", "prefix_reuse"),
    situations=("a prefix is reused",),
    rows=2,
    since=(1, 8),
)
def null(scene: Scene) -> None:
    """Behind a prefix of the window and several blocks; the null block where it is seen, or in a grant, is an InvalidRequest."""
    stage = scene.stage(_plan(scene))
    index, group = _group(stage)
    owner = stage.request(_long(stage, 3), want=replace(stage.wants, prompt_logprobs=False))
    batch = stage.start(owner)
    cached = len(owner.tokens) - group.block_size
    behind = left_behind(group, cached)
    sharer = stage.request(
        (*owner.tokens[:cached], 4, 8), want=replace(stage.wants, prompt_logprobs=False), cached=cached, shares=owner
    )
    stage.refuse(InvalidRequest, Prefill((_without_first(sharer, index, behind + 1),)))
    first = _without_first(sharer, index, behind)
    if behind < 1:
        raise NotReached("the prefix is not longer than the window")
    other = stage.start(first)
    stage.decode(batch, other, steps=group.block_size + 1)


def _without_first(request: Request, index: int, count: int) -> Request:
    """Return the request with the null block in the first places of a group."""
    tables = list(request.blocks)
    tables[index] = (NULL_BLOCK,) * count + tables[index][count:]
    return replace(request, blocks=tuple(tables))


@clause(
    "windows.drafts",
    "What a row sees after drafts depends on those that were kept.",
    Level.L2,
    needs=("windows", "paging", "speculation"),
    situations=("a draft is rejected",),
    since=(1, 8),
)
def drafts(scene: Scene) -> None:
    """Wrong drafts across a block's edge: the blocks that only they would have left behind are still read."""
    stage = open_drafting(scene, plan=_plan(scene))
    size = _group(stage)[1].block_size
    request = stage.request(_long(stage, 1)[: -most(stage)], want=stage.wants)
    made = texts(scene, stage, [request], size + 2 * most(stage) + 2)[request.id]
    batch, end = stage.start(request), len(request.tokens) + size + most(stage)
    while stage.row(request.id).done < end:
        stage.take_back()
        batch = step(stage, batch, {request.id: spoiled(stage, right(stage, request.id, made, most(stage)), 0)})
