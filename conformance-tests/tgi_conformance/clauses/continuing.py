"""A request can be continued from its prompt and the tokens generated so far, as after preemption and recovery."""

from __future__ import annotations

from tgi_conformance.clause import clause
from tgi_conformance.clauses.mates import ways
from tgi_conformance.scenario import Scene
from tgi_conformance.verdict import Level, NotReached, Violation
from tgi_core.backend import Feature, OutputOptions, Sampling, SamplingField

_TRIED = 40


def _continued(scene: Scene, hows: tuple[Sampling, ...]) -> None:
    """Generate six tokens in one go, and again from several points in between."""
    stage = scene.stage()
    for how in hows:
        whole = stage.outline(stage.prompts[0], how, want=OutputOptions(False, 2 * stage.has(Feature.TOP_N)))
        rows = scene.makes_alone(whole, 6)
        made = [token for row in rows for token in row.tokens]
        for done in (1, 3, 5):
            rest = stage.request((*whole.tokens, *made[:done]), how, prompt_len=len(whole.tokens))
            going_on = scene.makes_alone(rest, 6 - done)
            if not scene.same(whole, going_on, rows[done:]):
                again = [token for row in going_on for token in row.tokens]
                raise Violation(
                    "continue", f"{how}: {made[:done]} was followed by {made[done:]}; continued from there it makes {again}"
                )
            stage.filter(stage.decode(stage.start(rest), steps=2), ())


@clause("continue.greedy", "A request continued from its tokens goes on as if it had never stopped.", Level.L2)
def greedy(scene: Scene) -> None:
    """From several points."""
    _continued(scene, (Sampling(),))


@clause(
    "continue.sampled",
    "A continued request uses the random numbers of its positions, and its penalties count the tokens it had already generated.",
    Level.L2,
    needs=("formula",),
)
def sampled(scene: Scene) -> None:
    """With every declared way of sampling, and exactly where a penalty on generated tokens has changed the choice."""
    _continued(scene, ways(scene.stage()))
    for field, how in _DECISIVE.items():
        if field in scene.declared[0].sampling:
            _decided(scene, how)


_DECISIVE = {
    SamplingField.FREQUENCY_PENALTY: Sampling(frequency_penalty=-30.0),
    SamplingField.PRESENCE_PENALTY: Sampling(presence_penalty=-30.0),
}
"""Negative penalties that bring every generated token back as soon as possible."""


def _decided(scene: Scene, how: Sampling) -> None:
    stage = scene.stage()
    for first in range(_TRIED):
        prompt = stage.varied((first, 3, 1))
        whole, plain = (
            [token for row in scene.makes_alone(stage.outline(prompt, each), 8) for token in row.tokens]
            for each in (how, Sampling())
        )
        if whole == plain:
            continue
        done = next(index for index, (one, other) in enumerate(zip(whole, plain, strict=True)) if one != other)
        rest = stage.request((*stage.folded(prompt), *whole[:done]), how, prompt_len=len(prompt))
        again = scene.makes_alone(rest, 1)[0].tokens[0]
        if again != whole[done]:
            raise Violation(
                "continue", f"{how}: {whole[:done]} was followed by {whole[done]}; continued from there it makes {again}"
            )
        return
    raise NotReached(f"{how} changed no token after any of {_TRIED} prompts")
