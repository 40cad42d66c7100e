"""Features whose refusal this suite can check but which it cannot try yet: declaring one earns no credit."""

from __future__ import annotations

from tgi_conformance.clause import Check, clause
from tgi_conformance.scenario import Scene
from tgi_conformance.verdict import Level, NotReached


def _untried(feature: str) -> Check:
    def check(scene: Scene) -> None:
        raise NotReached(f"{feature} is declared, but this suite has no clause that tries it")

    return check


for _id, _feature, _sentence in (("media.refusal", "media", "Images are either processed or refused."),):
    clause(_id, _sentence, Level.L2, needs=(_feature,))(_untried(_feature))
