"""Features that this suite can refuse, and cannot try yet: what is undeclared must be refused; what is declared is not granted."""

from __future__ import annotations

from tgi_conformance.clause import Check, clause
from tgi_conformance.scene import Scene
from tgi_conformance.verdict import Level, NotReached


def _untried(feature: str) -> Check:
    def check(scene: Scene) -> None:
        raise NotReached(f"{feature} is declared, and this suite has no clause that tries it")

    return check


for _id, _feature, _sentence in (
    ("media.refusal", "media", "Images are seen, or refused."),
    ("speculation.refusal", "speculation", "Drafts are run, or a row takes no more than one token a step."),
):
    clause(_id, _sentence, Level.L2, needs=(_feature,))(_untried(_feature))
