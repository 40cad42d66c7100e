"""Grammar masks: the source is asked between forward pass and sampling, and forbidden tokens are never generated."""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.calls import Prefill
from tgi_conformance.clause import clause
from tgi_conformance.masks import ALTERNATING, FAILING, allows
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.verdict import Level, NotReached, Violation
from tgi_core.backend import Feature, Sampling, Unsupported


def _check_told(stage: Stage, made: dict[int, list[int]]) -> None:
    """Check that the source received every token but the last, in order, once each."""
    masks = stage.play.masks
    for id, tokens in made.items():
        told = masks.told.get(id, []) if masks else []
        if told != tokens[:-1]:
            raise Violation("masks", f"row {id} made {tokens} and its mask source was told {told}")


@clause(
    "masks.allowed",
    "A masked row generates only tokens that its mask allows; its mates are not masked.",
    Level.L2,
    needs=("masks",),
    rows=3,
)
def allowed(scene: Scene) -> None:
    """Greedy and sampled rows, masked and not, in one batch; the greedy masked one would begin with a token that its mask forbids."""
    stage = scene.stage(masks=ALTERNATING)
    hows = (
        Sampling(),
        Sampling(),
        Sampling(True, 1.5, seed=3) if "seed" in {item.value for item in stage.capabilities.sampling} else Sampling(),
    )
    prompts = (_forbidden(scene, stage), *stage.prompts[1:3])
    requests = [stage.request(prompts[i], how, masked=i != 1, want=stage.wants) for i, how in enumerate(hows)]
    stage.decode(stage.start(*requests), steps=5)
    for request in requests:
        tokens = stage.play.tokens(request.id)
        if request.masked and not all(allows(index, token) for index, token in enumerate(tokens)):
            raise Violation("masks", f"row {request.id} made {tokens}; its mask allows even and odd ids in turn")


def _forbidden(scene: Scene, stage: Stage) -> tuple[int, ...]:
    """Return a prompt after which an unmasked row begins with a token that the mask forbids."""
    for token in range(64):
        prompt = stage.varied((token, 3))
        if not allows(0, scene.makes_alone(stage.outline(prompt), 1)[0].tokens[0]):
            return prompt
    raise NotReached("no prompt is followed by a token that the mask forbids")


@clause(
    "masks.told",
    "The mask source is told every token that a masked row generates, once, and none that the request brought along.",
    Level.L1,
    needs=("masks",),
    rows=2,
)
def told(scene: Scene) -> None:
    """Rows that start apart, pause, merge and are filtered."""
    stage = scene.stage(masks=ALTERNATING)
    first, second = stage.request(stage.prompts[0], masked=True), stage.request(stage.prompts[1], masked=True)
    batch = stage.decode(stage.start(first), stage.start(second), steps=3)
    _check_told(stage, {request.id: stage.play.tokens(request.id) for request in (first, second)})
    batch = stage.decode(stage.filter(batch, [second.id]), steps=2)
    _check_told(stage, {second.id: stage.play.tokens(second.id)})


@clause("masks.no-source", "Where no mask source was given, a masked request is refused.", Level.L1, needs=("masks",))
def no_source(scene: Scene) -> None:
    """Unless the session declares that it masks without one."""
    stage = scene.stage()
    request = stage.request(stage.prompts[0])
    if not stage.has(Feature.MASKS):
        stage.refuse(Unsupported, Prefill((replace(request, masked=True),)))
    stage.decode(stage.start(request))


@clause(
    "masks.row-fault",
    "A row whose mask allows nothing ends alone with a mask fault; its mates go on.",
    Level.L1,
    needs=("masks",),
    situations=("a row leaves",),
    rows=3,
)
def row_fault(scene: Scene) -> None:
    """In the middle of a batch, after some tokens; then its blocks are used again."""
    stage = scene.stage(masks=FAILING)
    before, after = stage.request(stage.prompts[0], want=stage.wants), stage.request(stage.prompts[2], masked=True)
    doomed = stage.doomed(stage.prompts[1])
    batch = stage.decode(stage.start(before, doomed, after), steps=2)
    batch = stage.filter(batch, [before.id, after.id])
    stage.decode(batch, stage.start(stage.request(stage.prompts[4])), steps=3)


@clause(
    "masks.fault-ahead",
    "A row that failed is in no step that is read later, though it was launched.",
    Level.L1,
    needs=("masks", "run_ahead"),
    situations=("a step is launched ahead",),
    rows=2,
)
def fault_ahead(scene: Scene) -> None:
    """The step after the fault is launched before the fault is known."""
    stage = scene.stage(masks=FAILING)
    mate, doomed = stage.request(stage.prompts[0]), stage.doomed(stage.prompts[1])
    step = stage.go_on(stage.start(mate, doomed))
    for _ in range(2):
        after = stage.go_on(step)
        stage.read(step)
        step = after
    rest = stage.filter(step, [mate.id])
    stage.read(step)
    stage.decode(rest, steps=2)
