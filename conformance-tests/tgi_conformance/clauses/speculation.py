"""Drafts change no token: a row makes the same tokens as without them, only several per step. Right drafts come from what a row makes
alone. The judge compares each token of a step separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random

from tgi_conformance.calls import Decode, Ref
from tgi_conformance.clause import clause
from tgi_conformance.clauses.mates import ways
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.target import small_plan
from tgi_conformance.verdict import DoesNotApply, Level, NotReached, Violation
from tgi_core.backend import SAMPLING, CapacityExceeded, Grant, InvalidRequest, Request, SamplingField, SamplingStage, WarmupPlan

DRAFTS = 4
"""Most drafts per row and step that the suite asks for."""

_PENALTIES = [spec for spec in SAMPLING if spec.stage is SamplingStage.PENALTY and spec.field is not SamplingField.LOGIT_BIAS]

Text = list[int]
"""The tokens that a request makes alone."""


def drafting_plan(scene: Scene, plan: WarmupPlan | None = None) -> WarmupPlan:
    """Return the suite's usual plan, or another, with drafts."""
    return replace(plan or small_plan(scene.declared[0].block_sizes), draft=DRAFTS)


def open_drafting(scene: Scene, masks: str | None = None, *, plan: WarmupPlan | None = None) -> Stage:
    """Open a session that runs drafts. Raises NotReached if it allows none."""
    return able(scene.stage(drafting_plan(scene, plan), masks, shared=plan is None))


def able(stage: Stage) -> Stage:
    """Return the stage. Raises NotReached if its session allows no drafts."""
    if stage.capacity.draft < 1:
        raise NotReached(f"the plan asks for {DRAFTS} drafts, and the session allows none")
    return stage


def most(stage: Stage) -> int:
    """Return how many drafts to run at most."""
    return min(DRAFTS, stage.capacity.draft)


def texts(scene: Scene, stage: Stage, requests: Iterable[Request], count: int) -> dict[int, Text]:
    """Return the first `count` tokens of each request alone. Call this before any of them is live: a device may allow only one session."""
    yardstick = stage.play.judge.yardstick
    return {
        request.id: [token for row in scene.makes_alone(request, count, yardstick) for token in row.tokens]
        for request in requests
    }


def right(stage: Stage, id: int, text: Text, count: int) -> Text:
    """Return the next tokens of a row, as far as its text goes."""
    made = len(stage.play.tokens(id))
    return text[made : made + count]


def spoiled(stage: Stage, drafts: Text, place: int) -> Text:
    """Return drafts with another token at one place."""
    vocab = stage.capabilities.vocab_size
    return [(token + 1) % vocab if index == place else token for index, token in enumerate(drafts)]


def step(stage: Stage, batch: Ref, drafts: Mapping[int, Sequence[int]]) -> Ref:
    """Run and read a step in which the named rows run drafts, and the other rows take one token."""
    return stage.decode(batch, grants=stage.drafting(batch, drafts=drafts))


def _all_right(stage: Stage, batch: Ref, made: Mapping[int, Text], count: int) -> Ref:
    """Run a step in which each row runs `count` right drafts."""
    return step(stage, batch, {id: right(stage, id, text, count) for id, text in made.items()})


def mixture(scene: Scene, stage: Stage, requests: Sequence[Request], steps: int) -> None:
    """Run rows whose drafts are all right, then wrong at one place after another, in turn."""
    count = most(stage)
    made = texts(scene, stage, requests, 1 + steps * (count + 1))
    batch = stage.start(*requests)
    for turn in range(steps):
        place = count if turn % 2 == 0 else turn // 2 % count
        batch = step(stage, batch, {id: spoiled(stage, right(stage, id, text, count), place) for id, text in made.items()})
    stage.filter(stage.decode(batch), ())


@clause(
    "speculation.promise",
    "A session allows no more drafts than its plan asks for: none where it asks for none, and then a row takes one token a step.",
    Level.L2,
    needs=("speculation",),
)
def promise(scene: Scene) -> None:
    """A plan without drafts, and one with."""
    stage = scene.stage()
    if stage.capacity.draft:
        raise Violation("capacity", f"the plan asks for no drafts, and the session allows {stage.capacity.draft}")
    request = stage.request(stage.prompts[0], want=stage.wants)
    batch = stage.start(request)
    room = stage.grant(stage.row(request.id), 2).blocks
    stage.refuse(CapacityExceeded, Decode((batch,), (Grant(request.id, 2, room, (1,)),)))
    stage.refuse(InvalidRequest, Decode((batch,), (Grant(request.id, 2, room),)))
    stage.decode(batch, steps=2, grants=[Grant(request.id, 1, room)])
    allowed = scene.stage(drafting_plan(scene), shared=True).capacity.draft
    if not 0 <= allowed <= DRAFTS:
        raise Violation("capacity", f"the plan asks for {DRAFTS} drafts, and the session allows {allowed}")


@clause(
    "speculation.accept",
    "Drafts that are right are all kept, and one more token follows the last.",
    Level.L2,
    needs=("speculation",),
    situations=("a row runs drafts", "all drafts of a row are kept"),
)
def accept(scene: Scene) -> None:
    """One draft, then more, and plain steps afterwards."""
    stage = open_drafting(scene)
    request, counts = stage.request(stage.prompts[0], want=stage.wants), range(1, most(stage) + 1)
    made = texts(scene, stage, [request], sum(counts) + len(counts) + 1)
    batch = stage.start(request)
    for count in counts:
        batch = _all_right(stage, batch, made, count)
    stage.decode(batch, steps=2)


@clause(
    "speculation.reject",
    "A row keeps its tokens up to the first that is not the draft, and goes on from there.",
    Level.L2,
    needs=("speculation",),
    situations=("a row runs drafts", "a draft is rejected"),
    rows=2,
)
def reject(scene: Scene) -> None:
    """One error at each place; the places of two rows go opposite ways."""
    stage = open_drafting(scene)
    requests, count = [stage.request(prompt, want=stage.wants) for prompt in stage.prompts[:2]], most(stage)
    made = texts(scene, stage, requests, 1 + count * (count + 1))
    batch = stage.start(*requests)
    for place in range(count):
        places = dict(zip(made, (place, count - 1 - place), strict=True))
        batch = step(stage, batch, {id: spoiled(stage, right(stage, id, text, count), places[id]) for id, text in made.items()})
    stage.decode(batch, steps=2)


@clause(
    "speculation.random",
    "Whatever the drafts are and however many, they change no token.",
    Level.L2,
    needs=("speculation",),
    situations=("a draft is rejected",),
    rows=3,
)
def random(scene: Scene) -> None:
    """Right tokens, other tokens and the row's own last ones, in any order."""
    stage = open_drafting(scene)
    draw, count = Random(f"drafts {scene.seed}"), most(stage)
    requests = [stage.request(prompt, want=stage.wants) for prompt in stage.prompts[:3]]
    steps = max(3, round(6 * min(1.0, scene.effort)))
    made = texts(scene, stage, requests, 1 + steps * (count + 1))
    batch = stage.start(*requests)
    for turn in range(steps):
        drafts = {}
        for id, text in made.items():
            guess = right(stage, id, text, draw.randint(0, count))
            if draw.random() < 0.5:
                guess = [draw.choice((token, token, draw.choice(text), draw.randrange(50))) for token in guess]
            if draw.random() < 0.3:
                draw.shuffle(guess)
            drafts[id] = [token % stage.capabilities.vocab_size for token in guess]
        if turn == 0:
            drafts[requests[0].id] = spoiled(stage, right(stage, requests[0].id, made[requests[0].id], 1), 0)
        batch = step(stage, batch, drafts)


@clause(
    "speculation.beside",
    "Rows with drafts, right or wrong, and rows without run in one step, and each makes its own tokens.",
    Level.L2,
    needs=("speculation",),
    situations=("rows with and without drafts share a step", "a row sits out", "batches merge"),
    rows=4,
)
def beside(scene: Scene) -> None:
    """Four roles that rotate: all right, none, wrong at once, and sitting out; the rows come from two batches."""
    stage = open_drafting(scene)
    requests, count = [stage.request(prompt, want=stage.wants) for prompt in stage.prompts[:4]], most(stage)
    made = texts(scene, stage, requests, 1 + 4 * (count + 1))
    batches: tuple[Ref, ...] = (stage.start(*requests[:2]), stage.start(*requests[2:]))
    for turn in range(4):
        order = [requests[(turn + index) % 4].id for index in range(4)]
        drafts = {id: right(stage, id, made[id], count) for id in (order[0], order[2])}
        drafts[order[2]] = spoiled(stage, drafts[order[2]], 0)
        given = {grant.request_id: grant for grant in stage.drafting(*batches, drafts=drafts)}
        given[order[3]] = replace(given.get(order[3], Grant(order[3], 0)), take=0)
        batches = (stage.decode(*batches, grants=list(given.values())),)
    stage.decode(*batches)


@clause(
    "speculation.seeds",
    "A sampled row chooses each token of a step with the random number of its own position.",
    Level.L2,
    needs=("speculation", "seeds"),
    situations=("all drafts of a row are kept", "a draft is rejected"),
)
def seeds(scene: Scene) -> None:
    """Every declared filter, some rows at a time."""
    stage = open_drafting(scene)
    hows = [how for how in ways(stage) if how.do_sample]
    size = min(3, stage.capacity.max_rows)
    for first in range(0, len(hows), size):
        prompts = stage.prompts[: len(hows[first : first + size])]
        group = [
            stage.request(prompt, how, want=stage.wants) for prompt, how in zip(prompts, hows[first : first + size], strict=True)
        ]
        mixture(scene, stage, group, 3)


@clause(
    "speculation.penalties",
    "Penalties at a position count the drafts before it.",
    Level.L2,
    needs=("speculation",),
    situations=("all drafts of a row are kept",),
)
def penalties(scene: Scene) -> None:
    """Each declared penalty, with everything that a row can return; the texts are long enough for tokens to recur."""
    stage = open_drafting(scene)
    hows = [how for how in ways(stage) if any(spec.is_used(how) for spec in _PENALTIES)]
    if not hows:
        raise DoesNotApply("this session declares no penalty")
    for how in hows:
        rows = [stage.request(prompt, how, want=stage.wants) for prompt in stage.prompts[: min(3, stage.capacity.max_rows)]]
        mixture(scene, stage, rows, 6)
