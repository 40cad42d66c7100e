"""Prompts that run whole: their tokens see each other, and what follows them sees only what precedes it."""

from __future__ import annotations

from tgi_conformance.clause import clause
from tgi_conformance.clauses.chunked_prefill import finish
from tgi_conformance.scenario import Scene
from tgi_conformance.verdict import DoesNotApply, Level, Violation
from tgi_core.backend import Feature, OutputOptions

_MADE = 6


@clause(
    "continue.whole-prompts",
    "What follows a prompt that runs whole is no part of it, whether it comes with the prompt, in chunks or token by token.",
    Level.L2,
    since=(1, 9),
)
def whole_prompts(scene: Scene) -> None:
    """An answer made token by token; then its first tokens together with the prompt, and in chunks behind it."""
    if not scene.declared[0].whole_prompts:
        raise DoesNotApply("its prompts may be cut")
    stage = scene.stage()
    for prompt in stage.prompts[:3]:
        whole = stage.outline(prompt, want=OutputOptions(False, 2 * stage.has(Feature.TOP_N)))
        rows = scene.makes_alone(whole, _MADE)
        made = [token for row in rows for token in row.tokens]
        for known in (1, _MADE - 1):
            again = stage.outline((*whole.tokens, *made[:known]), want=whole.want, prompt_len=whole.prompt_len)
            going_on = scene.makes_alone(again, _MADE - known)
            if not scene.same(whole, going_on, rows[known:]):
                found = [token for row in going_on for token in row.tokens]
                raise Violation(
                    "continue", f"{made[:known]} was followed by {made[known:]}; with the prompt in one step, it is by {found}"
                )
        if stage.has(Feature.CHUNKED_PREFILL):
            tokens, first = (*whole.tokens, *made[:-1]), whole.prompt_len
            for take, chunk in ((first, 2), (first + 1, 3)):
                request = stage.request(tokens, take=take, prompt_len=first)
                stage.filter(finish(stage, stage.start(request), request.id, chunk), ())
