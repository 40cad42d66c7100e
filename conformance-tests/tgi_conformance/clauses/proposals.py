"""Proposed tokens are advice: whether or not they run as drafts, no token changes."""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.calls import Ref
from tgi_conformance.clause import clause
from tgi_conformance.clauses.mates import ways
from tgi_conformance.clauses.speculation import able, drafting_plan, most, step
from tgi_conformance.masks import ALTERNATING
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.session_setup import Setup
from tgi_conformance.verdict import DoesNotApply, Level, Violation
from tgi_core.backend import Feature, Grant, InvalidModel, Request, Unsupported, WarmupPlan


def _opened(scene: Scene, plan: WarmupPlan) -> Stage:
    """Open a session in which the model guesses its own next tokens. Raises DoesNotApply."""
    masks = ALTERNATING if Feature.MASKS in scene.declared[0].features else None
    try:
        stage = Stage(scene.play(Setup(plan, masks, speculating=True)), scene.seed)
    except (InvalidModel, Unsupported) as error:
        raise DoesNotApply(f"its own model is no speculator for it: {error}") from error
    if not stage.capabilities.proposals:
        raise DoesNotApply("it makes no proposals, though a speculator is asked for")
    return stage


def _proposed(stage: Stage, id: int, count: int) -> tuple[int, ...]:
    """Return the first of the tokens that a row proposed last."""
    return stage.play.results[id][-1].proposed[:count]


def _started(stage: Stage) -> tuple[Ref, list[Request]]:
    """Start a greedy row, one with a mask and one whose prompt takes two steps, as far as these are declared, and sampled rows as far as
    there is room. Return their batch and the rows."""
    first = stage.request(stage.prompts[0], want=stage.wants)
    masked = [stage.request(stage.prompts[4], masked=True)] if stage.has(Feature.MASKS) else []
    parts = [stage.request(stage.prompts[5], take=4)] if stage.has(Feature.CHUNKED_PREFILL) else []
    hows = [how for how in ways(stage) if how.do_sample][: min(3, stage.capacity.max_rows - 3)]
    sampled = [stage.request(prompt, how, want=stage.wants) for prompt, how in zip(stage.prompts[1:], hows, strict=False)]
    requests = [first, *masked, *sampled, *parts]
    batch = stage.start(*requests)
    left = [stage.grant(stage.row(part.id), len(part.tokens) - part.take) for part in parts]
    return stage.decode(batch, grants=[*stage.drafting(batch, drafts={}), *left]), requests


@clause(
    "speculation.proposals",
    "What rows propose are at most the promised drafts, tokens of the vocabulary, and advice: they change no token, run or not.",
    Level.L2,
    needs=("speculation",),
    situations=("a row proposes tokens", "a row runs drafts"),
    rows=3,
    since=(1, 5),
)
def proposals(scene: Scene) -> None:
    """All of them, some, none and wrong ones, in turn; then a plan without drafts, where nothing is proposed."""
    plan = drafting_plan(scene)
    stage = able(_opened(scene, plan))
    (batch, requests), count = _started(stage), most(stage)
    for turn in range(6):
        drafts = {request.id: _proposed(stage, request.id, (count, 0, 1, count)[turn % 4]) for request in requests}
        if turn % 4 == 3:
            drafts = {id: tuple(reversed(tokens)) for id, tokens in drafts.items()}
        batch = step(stage, batch, drafts)
    stage.decode(batch, steps=2)
    stage = _opened(scene, replace(plan, draft=0))
    stage.decode(stage.start(stage.request(stage.prompts[0])))


@clause(
    "speculation.silence",
    "A row that is told not to propose proposes nothing in that step; neither its tokens nor the proposals of other rows depend on it.",
    Level.L2,
    needs=("speculation",),
    situations=("a row proposes tokens", "a row runs drafts"),
    rows=3,
    since=(1, 7),
)
def silence(scene: Scene) -> None:
    """Every other row is silent, in turn, with and without its proposals as drafts; then all of them."""
    if scene.target.built < (1, 7):
        raise DoesNotApply("it was built against a contract in which rows always propose")
    stage = able(_opened(scene, drafting_plan(scene)))
    (batch, requests), count = _started(stage), most(stage)
    for turn in range(6):
        drafts = {request.id: _proposed(stage, request.id, count) for request in requests}
        given = {grant.request_id: grant for grant in stage.drafting(batch, drafts=drafts)}
        silent = {request.id for place, request in enumerate(requests) if (place + turn) % 2 or turn == 5}
        grants = [replace(given.get(request.id, Grant(request.id, 1)), propose=request.id not in silent) for request in requests]
        batch = stage.decode(batch, grants=grants)
        for id in sorted(silent):
            if proposed := _proposed(stage, id, count):
                raise Violation("proposals", f"row {id} was told not to propose anything and proposes {list(proposed)}")
    stage.decode(batch, steps=2)
