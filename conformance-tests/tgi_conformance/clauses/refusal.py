"""Anything that cannot be honoured is refused before the device is touched, never ignored."""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.calls import Prefill
from tgi_conformance.clause import clause
from tgi_conformance.features import EXTENSIONS
from tgi_conformance.fields import wrong
from tgi_conformance.scenario import Scene
from tgi_conformance.verdict import Level, Violation
from tgi_core.backend import SAMPLING, CapacityExceeded, InvalidRequest, OutputOptions, Sampling, SamplingField


@clause(
    "refusal.undeclared",
    "Every undeclared feature is refused as Unsupported, and none of the request's batch mates is admitted.",
    Level.L1,
)
def undeclared(scene: Scene) -> None:
    """All extended features in turn."""
    for extension in EXTENSIONS.values():
        if extension.refusal is not None and not extension.declared(scene):
            try:
                extension.refusal(scene)
            except Violation as violation:
                raise Violation(violation.law, f"{extension.name}: {violation}") from violation


@clause("refusal.sampling", "Sampling parameters out of range are an InvalidRequest.", Level.L1)
def sampling(scene: Scene) -> None:
    """Each number out of its range."""
    stage = scene.stage()
    request = stage.request(stage.prompts[0])
    declared = stage.capabilities.sampling
    hows = [how for spec in SAMPLING if spec.field is None or spec.field in declared for how in wrong(spec)]
    if SamplingField.LOGIT_BIAS in declared:
        hows += [Sampling(logit_bias=((token, 1.0),)) for token in (stage.capabilities.vocab_size, -1)]
    for how in hows:
        stage.refuse(InvalidRequest, Prefill((replace(request, sampling=how),)))
    if "top_n" in {item.value for item in stage.capabilities.features}:
        stage.refuse(InvalidRequest, Prefill((replace(request, want=OutputOptions(False, -1)),)))
    stage.decode(stage.start(request))


@clause("refusal.prompt", "A request without tokens, or longer than the longest row, is refused.", Level.L1)
def prompt(scene: Scene) -> None:
    """As InvalidRequest and as CapacityExceeded."""
    stage = scene.stage()
    request = stage.request(stage.prompts[0])
    stage.refuse(InvalidRequest, Prefill((replace(request, tokens=(), prompt_len=0, take=0),)))
    long = tuple(index % stage.capabilities.vocab_size for index in range(stage.capacity.max_row_tokens + 1))
    stage.refuse(CapacityExceeded, Prefill((replace(request, tokens=long, prompt_len=len(long), take=len(long)),)))
    stage.decode(stage.start(request))
