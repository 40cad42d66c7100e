"""Random traffic of rows of every kind, with short and long rows, in small and large batches."""

from __future__ import annotations

from random import Random

from tgi_conformance.clause import clause
from tgi_conformance.clauses.feature_combinations import Company, company
from tgi_conformance.scenario import Scene
from tgi_conformance.traffic import Traffic
from tgi_conformance.verdict import Level

_ACTIONS = 120
"""How many actions to take at an effort of 1."""
_LEAST = 30


def come_and_go(scene: Scene, here: Company, share: float = 1.0) -> None:
    """Run traffic drawn by the scene's seed, with a share of the usual number of actions."""
    Traffic(here, Random(scene.seed)).run(max(_LEAST, int(_ACTIONS * scene.effort * share)))


@clause("machine.traffic", "Rows of every kind generate the tokens they generate alone in any traffic.", Level.L2, rows=4)
def traffic(scene: Scene) -> None:
    """Without adapters, then with adapters where they are declared, which may mean another model with fewer tokens."""
    come_and_go(scene, company(scene, adapted=False))
    come_and_go(scene, company(scene))
