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


FURTHER = {"paging": "a row grows by a block", "seeds": "sampling differs within a batch", "mixing": "rows join a batch"}
"""What it must have come by where a feature is declared."""

_OFTEN = 10
"""How often each of them makes a proof, at an effort of 1: some seeds hardly ever merge."""

_TRIES = 5
"""How often it begins anew while something was reached too seldom: a little effort is no reason to have proved nothing."""


@clause("machine.laws", "Any sequence of verbs keeps every law of the protocol.", Level.L1, situations=REACHED, rows=2)
def laws(scene: Scene) -> None:
    """Drawn by hypothesis, shortened by it where a law is broken."""
    from tgi_conformance.machine import explore  # hypothesis takes a third of a second to import

    wanted = {*REACHED, *(situation for need, situation in FURTHER.items() if not missing(scene, (need,)))}
    often = max(1, int(_OFTEN * scene.effort))
    for number in range(_TRIES):
        explore(scene, scene.seed + 1000 * number)
        if all(scene.situations[situation] >= often for situation in wanted):
            return
    if unreached := [situation for situation in sorted(wanted) if not scene.situations[situation]]:
        raise NotReached(f"never reached: {', '.join(unreached)}")
