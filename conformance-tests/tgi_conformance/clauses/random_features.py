"""Rows that use features at random, many at once: combinations of three and more that no covering array of pairs contains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from tgi_conformance.clause import clause
from tgi_conformance.clauses.feature_combinations import Company, Spec, company
from tgi_conformance.fields import DECLARED
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import PLAIN
from tgi_conformance.verdict import Level
from tgi_core.backend import Determinism, Feature, Sampling, SamplingField, SamplingStage

_ROWS = 80
"""How many rows to draw at an effort of 1. Any three features meet in one of them almost surely."""

_WEAK: dict[str, tuple[Any, ...]] = {"top_k": (3, 6, 15), "min_p": (0.02, 0.1), "typical_p": (0.6, 0.9), "top_p": (0.7, 0.95)}
"""Values of filters that leave several tokens even when all of them apply."""


def drawn_row(here: Company, draw: Random) -> Spec:
    """Draw a spec that uses each declared feature with a probability of one in two."""
    stage = here.stage

    def likely() -> bool:
        return draw.random() < 0.5

    want = draw.choice((here.full, here.full, replace(here.full, prompt_logprobs=False), PLAIN))
    chunk = draw.choice((2, 3, 7, 16)) if likely() and stage.has(Feature.CHUNKED_PREFILL) else 0
    masked, shares = likely() and stage.play.masks is not None, likely() and stage.has(Feature.PREFIX_REUSE)
    adapter = draw.choice(here.adapters) if likely() and here.adapters else None
    return Spec(_sampling(here, draw), want, masked, adapter, chunk, draw.choice((1, 4, 9)) if likely() else 0, shares)


def _sampling(here: Company, draw: Random) -> Sampling:
    """Draw a combination of declared sampling fields."""
    found = here.stage.capabilities
    fields: dict[str, Any] = {}
    draws = SamplingField.SEED in found.sampling and found.determinism is not Determinism.NONE and draw.random() < 0.7
    if draws:
        seed = draw.getrandbits(draw.choice((8, 31, 40, 64)))
        fields = {"do_sample": True, "temperature": draw.choice((0.7, 1.5, 2.0, 3.0)), "seed": seed}
    for spec in DECLARED:
        if spec.field in found.sampling and (draws or spec.stage is SamplingStage.PENALTY) and draw.random() < 0.5:
            fields[spec.name] = (
                _biases(here, draw) if spec.name == "logit_bias" else draw.choice(_WEAK.get(spec.name, spec.tried))
            )
            fields |= spec.beside
    for name in ("top_k", "top_p") if draws else ():
        if draw.random() < 0.5:
            fields[name] = draw.choice(_WEAK[name])
    return Sampling(**fields)


def _biases(here: Company, draw: Random) -> tuple[tuple[int, float], ...]:
    """Draw biases of enough tokens that some of them are likely."""
    size = here.stage.capabilities.vocab_size
    tokens = draw.sample(range(size), max(1, size // 2))
    return tuple((token, draw.choice((-9.0, 1.5, 6.0))) for token in tokens)


def run_drawn(here: Company, seed: int, count: int) -> None:
    """Draw rows, let them come and go, and compare each with its run alone and with the formula."""
    draw = Random(seed)
    for specs in _parts([drawn_row(here, draw) for _ in range(count)]):
        here.run(specs, steps=draw.choice((1, 2, 3)))


def _parts(specs: list[Spec]) -> Iterator[list[Spec]]:
    """Yield parts of several sizes, so that rows meet in batches of several sizes."""
    sizes, first = (5, 9, 3, 12), 0
    while first < len(specs):
        size = sizes[first % len(sizes)]
        yield specs[first : first + size]
        first += size


@clause("pairs.drawn", "Rows that use many features at once generate the tokens they generate alone.", Level.L2, rows=4)
def drawn(scene: Scene) -> None:
    """Features are drawn by seed for each row."""
    run_drawn(company(scene), scene.seed, max(8, int(_ROWS * scene.effort)))
