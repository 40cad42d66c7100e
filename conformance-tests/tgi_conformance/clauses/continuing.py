"""A request can be continued from its prompt and the tokens made so far, as preemption and recovery do."""

from __future__ import annotations

from tgi_conformance.clause import clause
from tgi_conformance.clauses.mates import ways
from tgi_conformance.scene import Scene
from tgi_conformance.verdict import Level, Violation
from tgi_core.backend import Sampling


def _continued(scene: Scene, hows: tuple[Sampling, ...]) -> None:
    """Six tokens in one go, and again from each point between."""
    stage = scene.stage()
    for how in hows:
        whole = stage.outline(stage.prompts[0], how)
        made = [token for row in scene.alone.rows(whole, 6)[:6] for token in row.tokens]
        for done in (1, 3, 5):
            rest = stage.request((*whole.tokens, *made[:done]), how, prompt_len=len(whole.tokens))
            again = [token for row in scene.alone.rows(rest, 6 - done)[: 6 - done] for token in row.tokens]
            if again != made[done:]:
                raise Violation("continue", f"{how}: after {made[:done]} came {made[done:]}, continued there it makes {again}")
            stage.filter(stage.decode(stage.start(rest), steps=2), ())


@clause("continue.greedy", "A request that is continued from its tokens goes on as if it had never stopped.", Level.L2)
def greedy(scene: Scene) -> None:
    """At several points."""
    _continued(scene, (Sampling(),))


@clause(
    "continue.sampled",
    "A continued request draws the numbers of its positions, and its penalties count what it had made.",
    Level.L2,
    needs=("formula",),
)
def sampled(scene: Scene) -> None:
    """By every way of sampling that is declared."""
    _continued(scene, ways(scene.stage()))
