"""The CPU backend keeps every clause of the contract, on the demo model in float32."""

from __future__ import annotations

import pytest
from tgi_conformance import CLAUSES, Clause, Subject

from tests.scheduler.device import quiet
from tgi_core.backend import Capacity, OpenOptions, WarmupPlan
from tgi_core.backend.registry import find
from tgi_core.backend.session import Session
from tgi_core.model_files import DEMO


def open_session() -> tuple[Session, Capacity]:
    """A fresh session with a small cache."""
    session = Session(find("cpu").open(OpenOptions(str(DEMO)), quiet), "cpu")
    return session, session.warmup(WarmupPlan(max_rows=8, max_row_tokens=128, num_blocks=64), quiet)


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.id)
def test_keeps_the_clause(clause: Clause) -> None:
    """The law holds on a real model."""
    clause.check(Subject(open_session, 2048))
