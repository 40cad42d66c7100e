"""The suite bites: every mutant is caught by the clauses that are there for it, and no good twin by any."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from tgi_conformance.baseline import Alone
from tgi_conformance.clause_run import run_clause
from tgi_conformance.clauses import CLAUSES
from tgi_conformance.cli import main
from tgi_conformance.features import EXTENSIONS
from tgi_conformance.mutants import MUTANTS, TWINS
from tgi_conformance.proof.tally import tally
from tgi_conformance.proof.trials import JUDGING, Outcome
from tgi_conformance.verdict import Level, Verdict

from tgi_core.backend import Feature, SamplingField

pytestmark = pytest.mark.long

BY_ID = {clause.id: clause for clause in CLAUSES}


@pytest.mark.parametrize("name", MUTANTS)
def test_caught_by_the_clause_that_names_it(name: str) -> None:
    """Each clause of `killed_by` fails, with a message in one line."""
    target = MUTANTS[name].target()
    with closing(Alone(target)) as alone:
        for id in MUTANTS[name].killed_by:
            result = run_clause(BY_ID[id], target, alone, shorten=False)
            assert result.verdict is Verdict.FAIL, f"{id}: {result.verdict.value} {result.message}"
            assert result.message and "\n" not in result.message


def test_every_clause_kills() -> None:
    """No clause that judges is there for nothing, and no mutant without a word about where it was seen."""
    assert {id for mutant in MUTANTS.values() for id in mutant.killed_by} == {clause.id for clause in JUDGING}
    assert all(mutant.origin for mutant in MUTANTS.values())
    assert len(MUTANTS) >= 36 and len(TWINS) >= 6


def test_every_feature_has_a_clause() -> None:
    """Whatever a session can declare, a clause asks for: nothing is granted because nobody looked."""
    asked = {name for clause in CLAUSES for name in clause.needs}
    assert {item.value for item in Feature} | {item.value for item in SamplingField} - {"seed"} <= set(EXTENSIONS)
    assert set(EXTENSIONS) <= asked


@pytest.mark.parametrize("name", TWINS)
def test_no_false_alarm(name: str) -> None:
    """What is unusual and legal passes every clause, or is UNSUPPORTED where it declares less. Those that see images are usual without."""
    target = TWINS[name].target()
    alone = Alone(target)
    clauses = [clause for clause in CLAUSES if clause.level in (Level.L1, Level.L2, Level.L3)]
    clauses = [clause for clause in clauses if clause.topic == "media" or not name.endswith("images")]
    found = {clause.id: run_clause(clause, target, alone, effort=0.4) for clause in clauses}
    alone.close()
    wrong = {id: result.message for id, result in found.items() if result.verdict not in (Verdict.PASS, Verdict.UNSUPPORTED)}
    assert not wrong


@pytest.mark.parametrize("seed", range(4))
def test_the_machine_does_not_depend_on_luck(seed: int) -> None:
    """By any seed it catches what it is there for, and passes the reference, with every situation reached."""
    clause = BY_ID["machine.laws"]
    sound = TWINS["three-ahead"].target()
    assert run_clause(clause, sound, Alone(sound), seed).verdict is Verdict.PASS
    broken = MUTANTS["filter-clears-others"].target()
    assert run_clause(clause, broken, Alone(broken), seed, shorten=False).verdict is Verdict.FAIL


def test_a_seed_changes_what_is_sent() -> None:
    """Prompts, ids, blocks and samplers' seeds: the same clause by two seeds makes other calls, and by one seed the same ones."""
    target = MUTANTS["swapped-on-merge"].target()

    def sent(seed: int) -> tuple[str, ...]:
        return run_clause(BY_ID["mates.sampling-merge"], target, Alone(target), seed, shorten=False).sequence

    first, other = sent(1), sent(2)
    assert first == sent(1) and first[0].split("tokens")[0] != other[0].split("tokens")[0]
    assert all(part in first[0] for part in ("tokens", "blocks", "seed=")) and first[0] != other[0]


def test_the_matrix(tmp_path: Path) -> None:
    """A sample of `make mutants`: kills by every seed, no alarm, a page and a document."""
    names = ("adapter-of-the-first", "bits-by-rows", "misnamed", "modest")
    only = [part for name in names for part in ("--only", name)]
    out = ["--out", str(tmp_path / "m.html"), "--out", str(tmp_path / "m.json")]
    done = CliRunner().invoke(main, ["mutants", "--seeds", "2", "--processes", "1", *only, *out])
    assert done.exit_code == 0, done.output
    assert "lora.mates               adapter-of-the-first\n" in done.output
    assert "3 mutants, 1 good twins, 2 seeds: 4 of 4 intended kills by every seed, 0 idle clauses, 0 false alarms" in done.output
    matrix = json.loads((tmp_path / "m.json").read_text())
    assert matrix["proved"] and matrix["mutants"]["bits-by-rows"]["invariant.mates"] == [2, 2, True]
    assert matrix["mutants"]["misnamed"]["package.manifest"] == [1, 1, True]
    assert '<td class="meant">2</td>' in (tmp_path / "m.html").read_text()
    for wrong in (("--only", "nobody"), ("--out", "m.pdf")):
        assert CliRunner().invoke(main, ["mutants", *wrong]).exit_code == 2


def test_what_the_matrix_does_not_forgive() -> None:
    """A mutant that one seed misses, a clause that kills nothing by every seed, a twin that fails: each is named."""
    outcomes = [
        Outcome("m", "a.a", 0, True, "fail", "wrong"),
        Outcome("m", "a.a", 1, True, "pass", ""),
        Outcome("n", "b.b", 0, True, "fail", "wrong"),
        Outcome("n", "a.a", 0, False, "fail", "wrong"),
        Outcome("t", "b.b", 0, True, "inconclusive", "never"),
    ]
    matrix = tally(outcomes, ("m", "n"), ("t",), ("a.a", "b.b"))
    assert matrix.survivors == ("m by a.a, seed 1: pass",)
    assert matrix.idle == ("a.a",)
    assert matrix.alarms == ("t by b.b, seed 0: inconclusive: never",)
    assert not matrix.proved
