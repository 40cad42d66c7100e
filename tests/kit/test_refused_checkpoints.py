"""A backend need not run every architecture of the suite's checkpoints, but it cannot pass by running none."""

from __future__ import annotations

from pathlib import Path

import pytest
from tgi_conformance.baseline import Alone
from tgi_conformance.clause_run import run_clause
from tgi_conformance.clauses import CLAUSES
from tgi_conformance.golden import HERE, default_model
from tgi_conformance.target import Target
from tgi_conformance.verdict import Verdict

from tgi_core.backend import InvalidModel, OpenOptions
from tgi_core.backend.reference import backend_open

PARITY = [clause for clause in CLAUSES if clause.id in ("parity.greedy", "parity.one-by-one", "parity.end-of-text")]


def refusing(kind: str, *models: str) -> Target:
    """The toy under a device kind, with some checkpoints refused."""

    def open_session(options: OpenOptions) -> object:
        if Path(options.model).name in models:
            raise InvalidModel(f"{options.model}/config.json: not of a kind that runs here")
        return backend_open(options)

    return Target("refusing", open_session, default_model(kind), kind)


@pytest.mark.parametrize("clause", PARITY, ids=lambda clause: clause.id)
def test_refusing_everything_fails(clause: object) -> None:
    """Neither the toy's only transcripts nor the default Llama may be refused."""
    for target in (refusing("none", "toy"), refusing("accelerator", *(path.name for path in HERE.iterdir()))):
        result = run_clause(clause, target, Alone(target))  # type: ignore[arg-type]
        assert result.verdict is Verdict.FAIL and "InvalidModel" in result.message


def test_refusals_are_counted() -> None:
    """The report says which checkpoints were left out; the toy does not make the Llama's tokens, and fails by them."""
    target = refusing("accelerator", "gemma2", "gpt2")
    result = run_clause(PARITY[0], target, Alone(target))
    assert result.verdict is Verdict.FAIL and "made token" in result.message
    assert {"golden gemma2 refused", "golden gpt2 refused"} <= result.situations.keys()
