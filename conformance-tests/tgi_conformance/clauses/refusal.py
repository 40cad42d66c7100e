"""What cannot be honoured is refused before the device is touched, never ignored."""

from __future__ import annotations

import math
from dataclasses import replace

from tgi_conformance.calls import Prefill
from tgi_conformance.clause import clause
from tgi_conformance.features import EXTENSIONS
from tgi_conformance.scene import Scene
from tgi_conformance.verdict import Level, Violation
from tgi_core.backend import CapacityExceeded, InvalidRequest, Sampling, Want


@clause(
    "refusal.undeclared",
    "Every feature that is not declared is refused as Unsupported, and its batch mates are not admitted.",
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


@clause("refusal.sampling", "Sampling that no formula can honour is an InvalidRequest.", Level.L1)
def sampling(scene: Scene) -> None:
    """Each number out of its range."""
    stage = scene.stage()
    request = stage.request(stage.prompts[0])
    fields = {item.value for item in stage.capabilities.sampling}
    wrong: list[tuple[str, Sampling]] = [
        ("", Sampling(True, temperature=0.0)),
        ("", Sampling(True, temperature=-1.0)),
        ("", Sampling(True, temperature=math.inf)),
        ("", Sampling(True, temperature=math.nan)),
        ("", Sampling(True, top_k=-1)),
        ("", Sampling(True, top_p=0.0)),
        ("", Sampling(True, top_p=1.5)),
        ("typical_p", Sampling(True, typical_p=0.0)),
        ("repetition_penalty", Sampling(repetition_penalty=0.0)),
        ("repetition_penalty", Sampling(repetition_penalty=math.nan)),
        ("frequency_penalty", Sampling(frequency_penalty=math.inf)),
        ("presence_penalty", Sampling(presence_penalty=math.nan)),
        ("logit_bias", Sampling(logit_bias=((0, math.nan),))),
        ("logit_bias", Sampling(logit_bias=((stage.capabilities.vocab_size, 1.0),))),
        ("logit_bias", Sampling(logit_bias=((-1, 1.0),))),
    ]
    for needed, how in wrong:
        if not needed or needed in fields:
            stage.refuse(InvalidRequest, Prefill((replace(request, sampling=how),)))
    if "top_n" in {item.value for item in stage.capabilities.features}:
        stage.refuse(InvalidRequest, Prefill((replace(request, want=Want(False, -1)),)))
    stage.decode(stage.start(request))


@clause("refusal.prompt", "A request without tokens, or beyond the longest row, is refused.", Level.L1)
def prompt(scene: Scene) -> None:
    """InvalidRequest for the first, CapacityExceeded for the second."""
    stage = scene.stage()
    request = stage.request(stage.prompts[0])
    stage.refuse(InvalidRequest, Prefill((replace(request, tokens=(), prompt_len=0, take=0),)))
    long = tuple(index % stage.capabilities.vocab_size for index in range(stage.capacity.max_row_tokens + 1))
    stage.refuse(CapacityExceeded, Prefill((replace(request, tokens=long, prompt_len=len(long), take=len(long)),)))
    stage.decode(stage.start(request))
