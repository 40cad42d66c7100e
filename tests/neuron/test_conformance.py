"""The suite's central clauses over the stand-ins, in a process of their own; all of L0 to L2 by `make conformance`."""

from __future__ import annotations

import pytest

from tests.neuron.conformance import main

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("backend", "clauses"),
    [
        ("neuron", ("package.probe", "package.import-clean", "machine.laws", "parity.greedy", "masks.row-fault", "ranks.tokens")),
        ("neuron-native", ("package.probe", "package.import-clean", "parity.greedy")),
    ],
)
def test_clauses(backend: str, clauses: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> None:
    """They pass."""
    failures = str(tmp_path_factory.mktemp("failures"))
    assert main(backend, *(word for clause in clauses for word in ("--only", clause)), "--failures", failures) == 0
