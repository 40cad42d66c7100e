"""The contract's clauses about drafts, tried on a session that a test opens itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tgi_conformance.baseline import Alone
from tgi_conformance.clause_run import run_clause
from tgi_conformance.clauses import CLAUSES
from tgi_conformance.target import Target
from tgi_conformance.verdict import Verdict

from tgi_core.backend import OpenOptions


def passed(
    open: Callable[[OpenOptions], object],
    model: Path,
    *,
    but: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
    effort: float = 0.2,
    dtype: str = "float32",
) -> bool:
    """Whether every clause, or `only` some, is kept, `but` those about what the session does not declare. Raises AssertionError with what
    was not."""
    target = Target("drafting", open, model, device_kind="cpu", dtype=dtype)
    alone = Alone(target)
    for clause in CLAUSES:
        if clause.topic == "speculation" and (not only or clause.id in only):
            result = run_clause(clause, target, alone, effort=effort)
            wanted = Verdict.UNSUPPORTED if clause.id in but else Verdict.PASS
            assert result.verdict is wanted, "\n".join((clause.id, clause.sentence, result.message, *result.sequence))
    return True
