"""Mutants made at random: every operator is wrong somewhere, the draw repeats, and the figures are honest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tgi_conformance.clauses import TOPICS
from tgi_conformance.cli import main
from tgi_conformance.generated import Generated, drawn, named
from tgi_conformance.generated.conditions import Condition, condition
from tgi_conformance.generated.operators import registered
from tgi_conformance.generated.playing import difference
from tgi_conformance.proof.generated import (
    ALARM,
    EQUIVALENT,
    KILLED,
    SURVIVED,
    MutantOutcome,
    causes,
    figures,
    follow,
    only_by,
    wilson,
)
from tgi_conformance.subject import UnknownBackend, resolve

OPERATORS = registered()
PLAYS = 24


def _when(holds: bool) -> Condition:
    return condition("always" if holds else "never", "", lambda moment, position: holds)


@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name, item in OPERATORS.items() for place in range(len(item.kind.choices))]
)
def test_every_operator_changes_something(name: str, place: int) -> None:
    """Under a condition that always holds, in each of its ways, a wide play differs from the sound session."""
    mutant = Generated("generated:test", OPERATORS[name], OPERATORS[name].kind.choices[place], _when(True))
    assert difference(mutant.target(), PLAYS), mutant.cause
    assert mutant.fired


@pytest.mark.parametrize("name", [name for name in OPERATORS if name != "limit-one-off"])
def test_no_operator_acts_out_of_its_condition(name: str) -> None:
    """Under a condition that never holds it is the sound session: what a kill shows is the condition's and the operator's."""
    mutant = Generated("generated:test", OPERATORS[name], OPERATORS[name].kind.choices[0], _when(False))
    assert not difference(mutant.target(), 6)
    assert not mutant.fired


def test_the_draw_repeats() -> None:
    """The same seed and number make the same mutant, by its name too; other seeds make others, and no operator is left out."""
    first = [drawn(3, number).cause for number in range(40)]
    assert first == [drawn(3, number).cause for number in range(40)] == [named(f"generated:3:{n}").cause for n in range(40)]
    assert len(set(first)) > 35 and first != [drawn(4, number).cause for number in range(40)]
    many = {drawn(5, number).operator.name for number in range(1500)}
    assert many == set(OPERATORS)


def test_causes_name_topics_of_the_suite() -> None:
    """The mapping from causes to topics speaks of topics that there are, and never of the state machine alone."""
    for number in range(300):
        topics = drawn(1, number).topics
        assert topics and topics <= set(TOPICS) and topics != {"machine"}
    assert all(item.why.endswith(".") for item in OPERATORS.values())


@pytest.mark.parametrize(
    ("hits", "tried", "low", "high"),
    [(0, 0, 0.0, 1.0), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (1940, 2000, 0.9616, 0.9766)],
)
def test_the_interval(hits: int, tried: int, low: float, high: float) -> None:
    """Wilson's, by its published figures: never outside 0…1, and not empty where all or none fell."""
    assert wilson(hits, tried) == (pytest.approx(low, abs=2e-4), pytest.approx(high, abs=2e-4))


def test_a_mutant_falls_by_a_clause_that_names_it() -> None:
    """One that the suite kills is reported with its clause; run again by its name it falls again."""
    number = next(n for n in range(200) if drawn(1, n).condition.name == "always")
    fate = follow(1, number)
    assert fate.fate == KILLED and fate.clauses and fate.fired
    found = resolve(fate.name).target
    assert found.name == fate.name
    with pytest.raises(UnknownBackend, match="SEED:NUMBER"):
        resolve("generated:x")


def test_what_the_figures_count() -> None:
    """Equivalent mutants count for nothing, what ran out of time counts as alive, and a clause's own kills are those nobody else makes."""

    def fate(name: str, how: str, *clauses: str, named: bool = False) -> MutantOutcome:
        return MutantOutcome(name, "op (x)", "a and b", "op (x): a and b", how, clauses, named)

    fates = [
        fate("1", KILLED, "mates.merge", named=True),
        fate("2", KILLED, "mates.merge", "order.batch"),
        fate("3", SURVIVED),
        fate("4", EQUIVALENT),
        fate("5", "out of time"),
        fate("6", ALARM, "mates.merge", "order.batch"),
    ]
    found = figures(fates)
    assert (found.tried, found.judged, found.killed, found.named, found.late, found.alarms) == (6, 5, 2, 1, 1, 1)
    assert found.rate == 0.4
    assert only_by(fates)["mates.merge"] == ["1"] and not only_by(fates)["order.batch"]
    assert causes(fates) == [("a", 3, 5), ("b", 3, 5), ("op", 3, 5)]


def test_the_command(tmp_path: Path) -> None:
    """A few are drawn, run and told; the file holds every fate, and a rate below what is asked for is exit status 1."""
    out = tmp_path / "fates.json"
    asked = ["generated", "--mutants", "4", "--seeds", "2", "--seed", "7", "--plays", "2", "--processes", "1", "--out", str(out)]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 0, done.output
    value = json.loads(out.read_text())
    assert [fate["name"] for fate in value["fates"]] == ["generated:7:0", "generated:7:1", "generated:8:0", "generated:8:1"]
    assert "4 mutants" in done.output and "seeds 7…8, 2 plays" in done.output
    assert CliRunner().invoke(main, [*asked, "--out", str(tmp_path / "no" / "f.json")]).exit_code == 2
