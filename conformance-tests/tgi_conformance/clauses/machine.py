"""A state machine over all verbs, compared with the oracle."""

from __future__ import annotations

from tgi_conformance.clause import clause
from tgi_conformance.features import missing
from tgi_conformance.scenario import Scene
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
"""Situations the state machine must reach, or the run proves nothing."""


FURTHER = {"paging": "a row grows by a block", "seeds": "sampling differs within a batch", "mixing": "rows join a batch"}
"""Situations it must also reach where a feature is declared."""

_OFTEN = 10
"""How often each situation must be reached at an effort of 1; some seeds hardly ever merge."""

_TRIES = 5
"""How many seeds to try while some situation was reached too seldom, so that even a low effort proves something."""


@clause("machine.laws", "Any sequence of calls follows every rule of the protocol.", Level.L1, situations=REACHED, rows=2)
def laws(scene: Scene) -> None:
    """Hypothesis generates the sequences, and shrinks one that breaks a rule."""
    from tgi_conformance.machine import explore  # importing hypothesis takes a third of a second

    wanted = {*REACHED, *(situation for need, situation in FURTHER.items() if not missing(scene, (need,)))}
    often = max(1, int(_OFTEN * scene.effort))
    for number in range(_TRIES):
        explore(scene, scene.seed + 1000 * number)
        if all(scene.situations[situation] >= often for situation in wanted):
            return
    if unreached := [situation for situation in sorted(wanted) if not scene.situations[situation]]:
        raise NotReached(f"never reached: {', '.join(unreached)}")
