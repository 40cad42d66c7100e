"""KV caches of eight bits: what is declared is what was asked for, and rounding is the only difference."""

from __future__ import annotations

from tgi_conformance.clause import clause
from tgi_conformance.clauses.mates import company
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.session_setup import Setup
from tgi_conformance.verdict import DoesNotApply, Level, Violation
from tgi_core.backend import Request, Row, Sampling, Unsupported

CACHE_DTYPES = ("int8", "float8_e4m3fn", "float8_e5m2")
"""What `OpenOptions.cache_dtype` may ask for besides "auto"."""
_ROUNDING = 0.5
"""Largest accepted mean difference of logprobs to those of a cache in the model's dtype, in nats."""


@clause(
    "parity.cache-dtype",
    "A KV cache of eight bits has the dtype that was asked for, and changes a row by rounding alone, whatever its batch mates keep.",
    Level.L2,
    rows=2,
    since=(1, 10),
)
def cache_dtype(scene: Scene) -> None:
    """Rows in each dtype that is honoured: together, then alone, then beside what they make in the model's dtype."""
    honoured = 0
    for asked in CACHE_DTYPES:
        try:
            stage = Stage(scene.play(Setup(cache_dtype=asked)), scene.seed)
        except Unsupported:
            continue
        declared = stage.capabilities.cache_dtype
        if declared == "auto":
            continue
        if declared != asked:
            raise Violation("constant", f"a cache in {asked} was asked for, and it declares one in {declared}")
        honoured += 1
        requests = company(stage, (Sampling(),) * 4)
        stage.decode(stage.start(*requests), steps=4)
        for request in requests:
            _close(asked, request, stage.play.results[request.id][0], scene.makes_alone(request, 1)[0])
    if not honoured:
        raise DoesNotApply("it has no KV cache of eight bits")


def _close(asked: str, request: Request, row: Row, plain: Row) -> None:
    """Compare the first results. Raises Violation."""
    pairs = list(zip(row.prompt_logprobs[1:], plain.prompt_logprobs[1:], strict=True))
    if plain.top:
        likeliest = {each.id: each.logprob for each in plain.top[0]}
        shared = [(each.logprob, likeliest[each.id]) for each in row.top[0] if each.id in likeliest]
        if not shared:
            raise Violation("top", f"row {request.id}: over a cache in {asked}, all of its likeliest tokens are others")
        pairs += shared
    apart = [abs(mine - theirs) for mine, theirs in pairs if mine is not None and theirs is not None and mine != theirs]
    if apart and sum(apart) / len(pairs) > _ROUNDING:
        raise Violation(
            "logprobs",
            f"row {request.id}: over a cache in {asked}, its logprobs are {sum(apart) / len(pairs):.2f} nats off on average, more than "
            "rounding explains",
        )
