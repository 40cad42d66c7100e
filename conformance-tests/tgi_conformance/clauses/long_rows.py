"""Long rows: what holds in a row's first blocks holds up to the last position that a backend promises when asked for long rows."""

from __future__ import annotations

from itertools import cycle

from tgi_conformance.calls import NOTHING, Ref
from tgi_conformance.clause import clause
from tgi_conformance.clauses.mates import WAYS
from tgi_conformance.clauses.parity import golden_stages, sampled_as_declared
from tgi_conformance.golden import Case
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.target import LONG_ROW_TOKENS, plan_of
from tgi_conformance.verdict import Level, NotReached
from tgi_core.backend import Determinism, Feature, OutputOptions, Request, Sampling, SamplingField, WarmupPlan

ROWS = 3
_MADE = 4
"""Tokens that each long row generates."""


def long_plan(block_sizes: tuple[int, ...]) -> WarmupPlan:
    """Return a plan for a few rows of many blocks."""
    return plan_of(block_sizes, ROWS, LONG_ROW_TOKENS, LONG_ROW_TOKENS)


def text(stage: Stage, length: int, first: int) -> tuple[int, ...]:
    """Return a long prompt, varied by `first`."""
    return stage.varied((7 * index + index // 11 + first) % 50 for index in range(length))


def room(stage: Stage, shared: int = 1) -> int:
    """Return the length in tokens of the longest promised row, if `shared` of them share the blocks."""
    groups = enumerate(stage.capacity.groups)
    blocks = min(len(stage.free(index)) // shared * group.block_size for index, group in groups)
    return min(stage.capacity.max_row_tokens, blocks)


def begin(stage: Stage, request: Request) -> Ref:
    """Start a row whose first take fits a step, and run the rest of its prompt in steps of the largest size."""
    batch = stage.start(request)
    while owed := stage.row(request.id).owed:
        take = min(owed, stage.capacity.max_step_tokens)
        batch = stage.decode(batch, grants=[stage.grant(stage.row(request.id), take)])
    return batch


def _lengths(stage: Stage) -> list[int]:
    """Return lengths of prompts ending just before 100, powers of two, and the end of the longest row. Raises NotReached."""
    most = room(stage, 2) - _MADE
    if not stage.has(Feature.CHUNKED_PREFILL):
        most = min(most, stage.capacity.max_step_tokens)
    if most < 1:
        raise NotReached(f"a row of {stage.capacity.max_row_tokens} tokens has no room for {_MADE} more")
    return [length for length in (99, 127, 255, 511, 1023) if length < most] + [most]


@clause(
    "growth.long", "A row generates the same tokens next to other rows as alone, at any position up to max_row_tokens.", Level.L2
)
def long(scene: Scene) -> None:
    """Prompts that end near powers of two and twice near the end, each next to a short row; every other one is sampled.

    A row stays until the next one has begun, so that rows have other blocks than in their runs alone.
    """
    stage = scene.stage(long_plan(scene.declared[0].block_sizes), shared=True)
    scene.figures["positions"] = room(stage, 2)
    seeded, lengths, before = SamplingField.SEED in stage.capabilities.sampling, _lengths(stage), NOTHING
    for length, how in zip((*lengths, lengths[-1]), cycle((Sampling(), stage.seeded(WAYS[1]) if seeded else Sampling()))):
        if stage.capacity.max_rows < ROWS and before:
            before = stage.filter(before, ())
        take = min(length, stage.capacity.max_step_tokens)
        want = OutputOptions(stage.wants.logprobs, stage.wants.top_n)
        request = stage.request(text(stage, length, length + len(stage.play.trace)), how, take, want=want)
        batches = [begin(stage, request)]
        if before:
            stage.filter(before, ())
        if stage.capacity.max_rows > 1:
            batches.append(stage.start(stage.request(stage.prompts[3])))
        before = stage.filter(stage.decode(*batches, steps=_MADE), [request.id])
    stage.filter(before, ())


@clause(
    "chunks.long",
    "A long prompt in chunks generates the tokens and prompt logprobs of the same prompt in one piece.",
    Level.L2,
    needs=("chunked_prefill",),
    situations=("a prompt goes on",),
)
def long_chunks(scene: Scene) -> None:
    """In chunks of 300 and of 512 tokens, or of half the prompt if that is shorter."""
    stage = scene.stage(long_plan(scene.declared[0].block_sizes), shared=True)
    length = min(room(stage, 2) - _MADE, stage.capacity.max_step_tokens)
    for chunk in sorted({min(chunk, length // 2) for chunk in (300, 512)}):
        request = stage.request(text(stage, length, 5), take=chunk, want=stage.wants)
        batch = stage.start(request)
        while owed := stage.row(request.id).owed:
            batch = stage.decode(batch, grants=[stage.grant(stage.row(request.id), min(chunk, owed))])
        stage.filter(stage.decode(batch, steps=_MADE - 1), ())


@clause(
    "prefix.long",
    "A request behind a long cached prefix generates the tokens it generates without one.",
    Level.L2,
    needs=("prefix_reuse",),
    situations=("a prefix is reused",),
    rows=2,
)
def long_prefix(scene: Scene) -> None:
    """A prefix of all whole blocks of a row that takes half the cache, then of half of them."""
    stage = scene.stage(long_plan(scene.declared[0].block_sizes), shared=True)
    size = stage.capacity.groups[0].block_size
    length = min(room(stage, 2) - _MADE - 3, stage.capacity.max_step_tokens)
    whole = length // size * size
    if whole < size:
        raise NotReached(f"a prefix of whole {size}-token blocks does not fit a row of {stage.capacity.max_row_tokens} tokens")
    owner = stage.request(text(stage, length, 3))
    batch = stage.start(owner)
    for cached in dict.fromkeys((whole, max(1, whole // size // 2) * size)):
        tail = stage.folded((8, 9, 7))
        sharer = stage.request(
            (*owner.tokens[:cached], *tail), want=OutputOptions(stage.wants.logprobs), cached=cached, shares=owner
        )
        stage.filter(stage.decode(stage.start(sharer), steps=_MADE - 1), ())
    stage.decode(batch)


@clause(
    "parity.ends",
    "Tokens and logprobs match the golden transcripts up to the last position of each checkpoint.",
    Level.L2,
    situations=("golden cases compared",),
)
def ends(scene: Scene) -> None:
    """Generate from a short prompt to the end, and from a prompt that leaves room for a few tokens, as far as the promised limits
    go."""
    for golden, stage in golden_stages(scene, plan=plan_of(scene.declared[0].block_sizes, 2, LONG_ROW_TOKENS, LONG_ROW_TOKENS)):
        for case in golden.cases:
            drawn = case.sampling.do_sample and stage.capabilities.determinism is not Determinism.CORE
            if case.id.startswith(("far", "end")) and sampled_as_declared(stage, case) and not drawn:
                _to_the_end(scene, stage, case)


def _to_the_end(scene: Scene, stage: Stage, case: Case) -> None:
    length, most = len(case.prompt), room(stage)
    take = min(length, stage.capacity.max_step_tokens)
    if length >= most or (take < length and not stage.has(Feature.CHUNKED_PREFILL)):
        scene.situations["golden cases beyond the promise"] += 1
        return
    batch = begin(stage, stage.request(case.prompt, case.sampling, take, want=OutputOptions(stage.wants.logprobs)))
    steps = min(len(case.tokens), most + 1 - length) - 1
    stage.filter(stage.decode(batch, steps=steps) if steps else batch, ())
    scene.situations["golden cases compared"] += 1
