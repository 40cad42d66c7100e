"""One state machine over all verbs, against the oracle."""

from __future__ import annotations

from tgi_conformance.clause import clause
from tgi_conformance.features import missing
from tgi_conformance.scene import Scene
from tgi_conformance.verdict import Level, NotReached

REACHED = (
    "a row leaves",
    "a row sits out",
    "a batch goes on beside others",
    "a batch is filtered beside others",
    "another batch lives",
    "batches merge",
    "decode refused",
    "filter refused",
    "prefill refused",
    "several requests start together",
)
"""What the machine must have come by, or it has proved nothing."""


@clause("machine.laws", "Any sequence of verbs keeps every law of the protocol.", Level.L1, situations=REACHED)
def laws(scene: Scene) -> None:
    """Drawn by hypothesis, shortened by it where a law is broken."""
    from tgi_conformance.machine import explore  # hypothesis takes a third of a second to import

    explore(scene)
    further = {"paging": "a row grows by a block", "seeds": "sampling differs within a batch", "mixing": "rows join a batch"}
    for need, situation in further.items():
        if not scene.situations[situation] and not missing(scene, (need,)):
            raise NotReached(f"never reached: {situation}")
