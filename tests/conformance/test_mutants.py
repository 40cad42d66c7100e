"""The suite bites: every mutant is caught by the clauses that are there for it, and no good twin by any."""

from __future__ import annotations

import pytest
from tgi_conformance.alone import Alone
from tgi_conformance.clauses import CLAUSES
from tgi_conformance.mutants import MUTANTS, TWINS
from tgi_conformance.trying import attempt
from tgi_conformance.verdict import Level, Verdict

BY_ID = {clause.id: clause for clause in CLAUSES}
KILLABLE = {clause.id for clause in CLAUSES if clause.level is not Level.L4} - {"parity.other-dtypes"}
"""Figures fail nobody, and a toy has no dtypes."""


@pytest.mark.parametrize("name", MUTANTS)
def test_caught_by_the_clause_that_names_it(name: str) -> None:
    """Each clause of `killed_by` fails, with a message in one line."""
    target = MUTANTS[name].target()
    alone = Alone(target)
    for id in MUTANTS[name].killed_by:
        result = attempt(BY_ID[id], target, alone)
        assert result.verdict is Verdict.FAIL, f"{id}: {result.verdict.value} {result.message}"
        assert result.message and "\n" not in result.message


def test_every_clause_kills() -> None:
    """No clause is there for nothing, and no mutant without a word about where it was seen."""
    assert {id for mutant in MUTANTS.values() for id in mutant.killed_by} == KILLABLE
    assert all(mutant.origin for mutant in MUTANTS.values())
    assert len(MUTANTS) >= 36 and len(TWINS) >= 6


@pytest.mark.parametrize("name", TWINS)
def test_no_false_alarm(name: str) -> None:
    """What is unusual and legal passes every clause, or is UNSUPPORTED where it declares less."""
    target = TWINS[name].target()
    alone = Alone(target)
    clauses = [clause for clause in CLAUSES if clause.level in (Level.L1, Level.L2, Level.L3)]
    found = {clause.id: attempt(clause, target, alone, effort=0.4) for clause in clauses}
    wrong = {id: result.message for id, result in found.items() if result.verdict not in (Verdict.PASS, Verdict.UNSUPPORTED)}
    assert not wrong


@pytest.mark.parametrize("seed", range(4))
def test_the_machine_does_not_depend_on_luck(seed: int) -> None:
    """By any seed it catches what it is there for, and passes the reference, with every situation reached."""
    clause = BY_ID["machine.laws"]
    sound = TWINS["three-ahead"].target()
    assert attempt(clause, sound, Alone(sound), seed).verdict is Verdict.PASS
    broken = MUTANTS["filter-clears-others"].target()
    assert attempt(clause, broken, Alone(broken), seed).verdict is Verdict.FAIL
