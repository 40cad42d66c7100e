"""Drafts and blocks, steps launched ahead, rows that join and leave, refusals, masks, and adapters."""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.calls import Call, Decode, Ref
from tgi_conformance.clause import clause
from tgi_conformance.clauses.cover import block_size
from tgi_conformance.clauses.lora import adapted_transcripts, case_request
from tgi_conformance.clauses.speculation import able, drafting_plan, mixture, most, open_drafting, right, spoiled, step, texts
from tgi_conformance.masks import ALTERNATING, FAILING
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.session_setup import Setup
from tgi_conformance.target import prefix_plan
from tgi_conformance.verdict import Level, NotReached
from tgi_core.backend import CapacityExceeded, Feature, Grant, InvalidRequest


@clause(
    "speculation.blocks",
    "Drafts that are kept cross from one block into the next, and later tokens read both.",
    Level.L2,
    needs=("speculation", "paging"),
    situations=("all drafts of a row are kept", "a row grows by a block"),
)
def blocks(scene: Scene) -> None:
    """Right drafts across two block boundaries, in a separate step and with blocks granted as needed."""
    stage = open_drafting(scene)
    size, request = block_size(stage), stage.request(stage.prompts[1], want=stage.wants)
    end = min(len(request.tokens) + 2 * size + 1, stage.capacity.max_row_tokens - most(stage) - 2)
    made = texts(scene, stage, [request], end - len(request.tokens) + most(stage) + 1)
    batch = stage.start(request)
    while stage.row(request.id).done < end:
        batch = step(stage, batch, {request.id: right(stage, request.id, made[request.id], most(stage))})
    stage.decode(batch)


def _block(stage: Stage) -> tuple[tuple[int, ...], ...]:
    """Return a free block of the first group, to be granted in a call that must be refused."""
    return tuple(stage.spare_blocks(1) if group == 0 else () for group in range(len(stage.capacity.groups)))


def _owner(scene: Scene, stage: Stage, prompt: tuple[int, ...], end: int) -> tuple[Ref, int]:
    """Run a row with drafts, all of them wrong, up to a position; return its batch and its id."""
    request = stage.request(prompt, want=replace(stage.wants, prompt_logprobs=False))
    made = texts(scene, stage, [request], end - len(prompt) + most(stage) + 2)[request.id]
    batch = stage.start(request)
    while stage.row(request.id).done < end:
        batch = step(stage, batch, {request.id: spoiled(stage, right(stage, request.id, made, most(stage)), 0)})
    return batch, request.id


@clause(
    "speculation.continue",
    "A request that continues from another's tokens, in its blocks, is not affected by drafts that were rejected there.",
    Level.L2,
    needs=("speculation",),
    situations=("a draft is rejected", "a row leaves"),
)
def continuing(scene: Scene) -> None:
    """Twice in the same blocks, from the tokens so far, as after preemption."""
    stage = open_drafting(scene)
    prompt = stage.prompts[0]
    batch, id = _owner(scene, stage, prompt, len(prompt) + 4)
    tokens = (*stage.folded(prompt), *stage.play.tokens(id))
    stage.filter(batch, ())
    rest = stage.request(tokens, want=replace(stage.wants, prompt_logprobs=False), prompt_len=len(prompt))
    stage.decode(stage.start(rest), steps=3)


@clause(
    "speculation.prefix",
    "A prefix that holds generated tokens holds those that were emitted, and no draft that was rejected.",
    Level.L2,
    needs=("speculation", "prefix_reuse"),
    situations=("a draft is rejected", "a prefix is reused"),
    rows=2,
)
def prefix(scene: Scene) -> None:
    """The owner's drafts are wrong while it fills the last block that is shared; it lives on, and leaves."""
    stage = open_drafting(scene, plan=prefix_plan(scene.declared[0].block_sizes))
    size = stage.capacity.groups[0].block_size
    if size + 16 > stage.capacity.max_row_tokens:
        raise NotReached(f"a prefix of one {size}-token block does not fit a row of {stage.capacity.max_row_tokens} tokens")
    prompt = stage.varied((3 * index + 1) % 50 for index in range(max(2, size - 3)))
    batch, id = _owner(scene, stage, prompt, size + 5)
    row, want = stage.row(id), replace(stage.wants, prompt_logprobs=False)
    cached = row.done // size * size
    tokens = (*row.request.tokens, *stage.play.tokens(id))
    shared = replace(row.request, blocks=tuple(map(tuple, row.blocks)))
    sharer = stage.request((*tokens[:cached], 8, 9, 7), want=want, cached=cached, shares=shared)
    batch = stage.decode(batch, stage.start(sharer), steps=2)
    stage.keep_blocks(id)
    stage.decode(stage.filter(batch, [sharer.id]), steps=2)


@clause(
    "speculation.drop",
    "Rows may leave between the launch of a step with drafts and its reading; those that stay keep their drafts.",
    Level.L2,
    needs=("speculation",),
    situations=("a row runs drafts", "a row leaves", "all drafts of a row are kept", "a batch is cleared beside others"),
    rows=4,
)
def drop(scene: Scene) -> None:
    """One row is filtered out, and its blocks are reused at once; another batch is cleared, then everything."""
    stage = open_drafting(scene)
    requests, count = [stage.request(prompt, want=stage.wants) for prompt in stage.prompts[:4]], most(stage)
    made = texts(scene, stage, requests, 2 + 4 * (count + 1))
    first, last = requests[0], requests[2]
    batch, other = stage.start(*requests[:3]), stage.start(requests[3])

    def drafts(*batches: Ref) -> Ref:
        rows = [row.request.id for each in batches for row in stage.play.oracle.batches[each]]
        return stage.go_on(
            *batches, grants=stage.drafting(*batches, drafts={id: right(stage, id, made[id], count) for id in rows})
        )

    launched = drafts(batch)
    rest = stage.filter(launched, [first.id, last.id])
    new = stage.launch(stage.request(stage.prompts[4])) if stage.capacity.in_flight > 1 else 0
    stage.read(launched)
    if new:
        stage.filter(stage.read(new), ())
    other_launched = drafts(other)
    stage.clear(other_launched)
    stage.read(other_launched)
    rest = stage.read(drafts(rest))
    drafts(rest)
    stage.clear(None)
    again = stage.request(stage.prompts[5], want=stage.wants)
    stage.decode(stage.start(again), steps=2)


@clause(
    "speculation.ahead",
    "While a step that runs a row's drafts is unread, the row takes 0, and its mates go on in steps launched ahead.",
    Level.L2,
    needs=("speculation", "run_ahead"),
    situations=("a step is launched ahead", "a row sits out", "all drafts of a row are kept", "a draft is rejected"),
    rows=2,
)
def ahead(scene: Scene) -> None:
    """Until then, any take above 0 is an InvalidRequest; drafts are right, then wrong."""
    stage = open_drafting(scene)
    guessed, mate = (stage.request(prompt, want=stage.wants) for prompt in stage.prompts[:2])
    made = texts(scene, stage, [guessed], 2 + 3 * (most(stage) + 1))[guessed.id]
    batch = stage.start(guessed, mate)
    for turn in range(3):
        drafts = right(stage, guessed.id, made, most(stage))
        drafts = spoiled(stage, drafts, 0) if turn == 1 else drafts
        launched = stage.go_on(batch, grants=stage.drafting(batch, drafts={guessed.id: drafts}))
        for grant in (Grant(guessed.id, 1, _block(stage)), Grant(guessed.id, 2, _block(stage), (drafts[0],))):
            stage.refuse(InvalidRequest, Decode((launched,), (grant,)))
        further = stage.go_on(launched)
        stage.read(launched)
        batch = stage.read(further)
    stage.decode(batch, steps=2)


@clause(
    "speculation.join",
    "New rows join in a step in which rows of the running batch run drafts.",
    Level.L2,
    needs=("speculation", "mixing"),
    situations=("rows join beside drafts", "all drafts of a row are kept", "a draft is rejected"),
    rows=4,
)
def join(scene: Scene) -> None:
    """One row joins while all drafts are right, another while they are wrong, if possible with a part of its prompt."""
    stage = open_drafting(scene)
    old = [stage.request(prompt, want=stage.wants) for prompt in stage.prompts[:2]]
    made = texts(scene, stage, old, 2 + 2 * (most(stage) + 1))
    batch = stage.start(*old)
    for place, prompt in ((most(stage), stage.prompts[2]), (0, stage.prompts[5])):
        drafts = {id: spoiled(stage, right(stage, id, text, most(stage)), place) for id, text in made.items()}
        part = 4 if place == 0 and stage.has(Feature.CHUNKED_PREFILL) else None
        new = stage.request(prompt, take=part, want=stage.wants)
        batch = stage.start(new, beside=batch, grants=stage.drafting(batch, drafts=drafts))
        if part:
            batch = stage.decode(
                batch, grants=[*stage.drafting(batch, drafts={}), stage.grant(stage.row(new.id), len(prompt) - part)]
            )
    stage.decode(batch, steps=2)


@clause(
    "speculation.limit",
    "Drafts count towards max_row_tokens: a row reaches it with drafts, and one more is CapacityExceeded.",
    Level.L2,
    needs=("speculation",),
    situations=("a row runs drafts",),
)
def limit(scene: Scene) -> None:
    """As many drafts as fit at the end of a row."""
    stage = open_drafting(scene)
    end, count = stage.capacity.max_row_tokens, most(stage)
    length = min(end, stage.capacity.max_step_tokens) - count - 3
    if end - length > 256 or length < 1:
        raise NotReached(f"a row of {end} tokens takes too many steps of {stage.capacity.max_step_tokens} to fill")
    request = stage.request(stage.varied((7 * index + 3) % 50 for index in range(length)))
    made = texts(scene, stage, [request], end - length + 1)[request.id]
    batch = stage.start(request)
    while (room := end - stage.row(request.id).done) > 0:
        if room <= count:
            guess = spoiled(stage, [*right(stage, request.id, made, room), 0][:room], 0)
            stage.refuse(CapacityExceeded, Decode((batch,), (Grant(request.id, 1 + room, _block(stage), tuple(guess)),)))
        drafts = right(stage, request.id, made, min(count, room - 1))
        batch = step(stage, batch, {request.id: drafts})
    stage.refuse(CapacityExceeded, Decode((batch,), (Grant(request.id, 1, _block(stage)),)))


@clause(
    "speculation.refusal",
    "Drafts are either run, or a row takes no more than one token a step.",
    Level.L2,
    needs=("speculation",),
    situations=("all drafts of a row are kept",),
)
def refusal(scene: Scene) -> None:
    """Too many drafts are CapacityExceeded; another take, drafts of an incomplete prompt or beyond the vocabulary an InvalidRequest."""
    stage = open_drafting(scene)
    request, vocab = stage.request(stage.prompts[0], want=stage.wants), stage.capabilities.vocab_size
    made = texts(scene, stage, [request], 4 + most(stage))[request.id]
    batch = stage.start(request)
    room = stage.grant(stage.row(request.id), 2 + stage.capacity.draft).blocks

    def asking(take: int, *drafts: int) -> Call:
        return Decode((batch,), (Grant(request.id, take, room, drafts),))

    many = [token % vocab for token in range(1 + stage.capacity.draft)]
    stage.refuse(CapacityExceeded, asking(1 + len(many), *many))
    for wrong in (asking(2), asking(0, made[1]), asking(1, made[1]), asking(3, made[1]), asking(2, vocab), asking(2, -1)):
        stage.refuse(InvalidRequest, wrong)
    if stage.has(Feature.CHUNKED_PREFILL) and stage.capacity.max_rows > 1:
        part = stage.request(stage.prompts[5], take=3)
        begun = stage.start(part)
        early = replace(stage.grant(stage.row(part.id), 2), drafts=(part.tokens[4],))
        stage.refuse(InvalidRequest, Decode((begun,), (early,)))
        stage.filter(begun, ())
    drafts = right(stage, request.id, made, most(stage))
    stage.decode(batch, steps=2, grants=[Grant(request.id, 1 + len(drafts), room, tuple(drafts))])


@clause(
    "speculation.masks",
    "A masked row chooses each token of a step under the mask of its own position, and its source hears of emitted tokens only.",
    Level.L2,
    needs=("speculation", "masks"),
    situations=("all drafts of a row are kept", "a draft is rejected"),
    rows=3,
)
def masks(scene: Scene) -> None:
    """Masked rows next to an unmasked one, if there is room; a wrong draft is a token that the mask forbids."""
    stage = open_drafting(scene, ALTERNATING)
    prompts = stage.prompts[: min(4, stage.capacity.max_rows)]
    requests = [stage.request(prompt, want=stage.wants, masked=index < 3) for index, prompt in enumerate(prompts)]
    mixture(scene, stage, requests, 5)


@clause(
    "speculation.mask-fault",
    "A mask that allows nothing is a fault where a token would be chosen by it, after the tokens before; elsewhere it is none.",
    Level.L2,
    needs=("speculation", "masks"),
    situations=("a draft is rejected", "a row leaves"),
    rows=3,
)
def mask_fault(scene: Scene) -> None:
    """One row's drafts lead to the mask, another row's are wrong before it; a mate goes on."""
    stage = open_drafting(scene, FAILING)
    mate = stage.request(stage.prompts[0], want=stage.wants, masked=True)
    arrives, misses = (stage.doomed(prompt, want=stage.wants) for prompt in stage.prompts[1:3])
    made = texts(scene, stage, (mate, arrives, misses), 4 + most(stage))
    batch = stage.start(mate, arrives, misses)
    drafts = {id: right(stage, id, text, most(stage)) for id, text in made.items()}
    batch = step(stage, batch, drafts | {misses.id: spoiled(stage, drafts[misses.id], 0)})
    batch = stage.filter(batch, [mate.id, misses.id])
    batch = step(stage, batch, {misses.id: right(stage, misses.id, made[misses.id], 1)})
    stage.decode(stage.filter(batch, [mate.id]), steps=2)


@clause(
    "speculation.adapters",
    "A row with an adapter runs its drafts with that adapter.",
    Level.L2,
    needs=("speculation", "lora"),
    situations=("all drafts of a row are kept", "a draft is rejected"),
    rows=2,
)
def adapters(scene: Scene) -> None:
    """Every adapter and the base model, two or more rows at a time."""
    golden = adapted_transcripts(scene)
    setup = Setup(drafting_plan(scene), golden=golden.name, adapters=True, alone=True)
    stage = able(Stage(scene.play(setup, shared=True), scene.seed))
    cases = [case for case in golden.cases if case.id.startswith(("greedy", "adapted-greedy"))]
    cases = [case for case in cases if case.prompt == cases[0].prompt]
    size = min(4, stage.capacity.max_rows)
    for first in range(0, len(cases), size):
        requests = [case_request(stage, case, want=stage.wants) for case in cases[first : first + size]]
        mixture(scene, stage, requests, 3)
