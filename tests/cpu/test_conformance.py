"""The CPU backend keeps the contract: package and protocol here, the rest by `make conformance`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import pytest
from tgi_conformance import conformance_tests
from tgi_conformance.baseline import Alone
from tgi_conformance.clause import Clause
from tgi_conformance.clause_run import run_clause
from tgi_conformance.clauses import CLAUSES
from tgi_conformance.subject import resolve
from tgi_conformance.verdict import Verdict

os.environ.setdefault("OMP_NUM_THREADS", "1")  # models this small gain nothing from threads

test_conformance = conformance_tests("cpu", "L1", effort=0.2)


@pytest.fixture(scope="module")
def alone() -> Iterator[Alone]:
    """What requests make alone."""
    with closing(Alone(resolve("cpu", None).target)) as found:
        yield found


@pytest.mark.parametrize("clause", [clause for clause in CLAUSES if clause.topic == "media"], ids=lambda clause: clause.id)
def test_images(clause: Clause, alone: Alone) -> None:
    """It takes images of golden models whose images see what precedes them, and all of themselves."""
    result = run_clause(clause, resolve("cpu", None).target, alone)
    assert result.verdict is Verdict.PASS, result.message
    assert alone.seeing == ("gemma3", "llava")
