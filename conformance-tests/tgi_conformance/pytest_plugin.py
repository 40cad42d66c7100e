"""The suite within a backend's own pytest run, one test per clause.

from tgi_conformance.pytest_plugin import conformance_tests

test_conformance = conformance_tests("NAME", level="L2")
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import pytest

from tgi_conformance.baseline import Alone
from tgi_conformance.clause import Clause
from tgi_conformance.clause_run import run_clause
from tgi_conformance.clauses import CLAUSES
from tgi_conformance.known import FILE, apply, read_known
from tgi_conformance.subject import resolve
from tgi_conformance.target import Target
from tgi_conformance.verdict import Level, Verdict

_PASSING = (Verdict.PASS, Verdict.KNOWN)


def conformance_tests(
    backend: str | Target,
    level: str = "L3",
    *,
    model: Path | None = None,
    known: Path | None = None,
    seed: int = 0,
    effort: float = 1.0,
) -> Callable[..., None]:
    """Return a test function, parametrized by clause up to `level`.

    UNSUPPORTED skips the test with its reason; any verdict that blocks a level fails it. `backend` is an entry-point name, or a
    `Target` for a session that is not installed. `known` is the file of known failures, by default conformance.toml in the working
    directory.
    """
    target = backend if isinstance(backend, Target) else resolve(backend, model).target
    alone = Alone(target)
    file = known or (Path(FILE) if Path(FILE).exists() else None)
    expected = read_known(file, {clause.id for clause in CLAUSES}) if file else {}
    chosen = [clause for clause in CLAUSES if clause.level.value <= Level(level).value]
    if target.entry is None:
        # A target that is not an installed plugin has no package to check, and no other process can open it.
        chosen = [clause for clause in chosen if clause.level is not Level.L0 and "tensor_parallel" not in clause.needs]

    @pytest.mark.parametrize("clause", chosen, ids=lambda clause: clause.id)
    def test(clause: Clause, request: pytest.FixtureRequest) -> None:
        """Check that the backend satisfies the clause."""
        module = request.node.getparent(pytest.Module)
        if module is not None:
            module.addfinalizer(alone.close)  # clauses share sessions, which must not keep the device afterwards
        result = apply(run_clause(clause, target, alone, seed, effort), expected.get(clause.id), datetime.date.today())
        if result.verdict is Verdict.UNSUPPORTED:
            pytest.skip(result.message)
        if result.verdict not in _PASSING:
            steps = "\n".join(f"  {step}" for step in result.sequence)
            message = f"{clause.id}: {result.verdict.value}\n{clause.sentence}\n{result.message}\n{steps}"
            if clause.provisional:
                pytest.skip(message)
            pytest.fail(message, pytrace=False)

    return test
