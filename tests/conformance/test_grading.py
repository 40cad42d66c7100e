"""What is granted follows from the results alone, and nothing blocks or grants by accident."""

from __future__ import annotations

import datetime
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tgi_conformance.clause import Clause
from tgi_conformance.clause_order import Selection, run_clauses, run_clauses_together
from tgi_conformance.known import InvalidKnownFailures, KnownFailure, apply, read_known
from tgi_conformance.report import document, grading
from tgi_conformance.report.registry import registry
from tgi_conformance.report.support import support_matrix
from tgi_conformance.result import Result
from tgi_conformance.verdict import Level, Verdict

TODAY = datetime.date(2026, 5, 1)


def entry(id: str, level: str, verdict: str, features: tuple[str, ...] = (), provisional: bool = False) -> dict[str, Any]:
    """One line of a report."""
    return {"id": id, "level": level, "verdict": verdict, "features": list(features), "provisional": provisional}


@pytest.mark.parametrize(
    ("verdict", "granted"),
    [
        ("pass", True),
        ("known", True),
        ("unsupported", True),
        ("fail", False),
        ("inconclusive", False),
        ("error", False),
        ("not run", False),
    ],
)
def test_what_blocks(verdict: str, granted: bool) -> None:
    """FAIL, ERROR, INCONCLUSIVE and NOT RUN do, and not for the levels below; a provisional clause only where its feature is claimed
    and was not tried."""
    entries = [entry("a.a", "L0", "pass"), entry("b.b", "L1", verdict), entry("c.c", "L2", "pass")]
    found = grading.levels(entries)
    assert found["L0"] == "granted"
    assert (found["L1"] == "granted") is (found["L2"] == "granted") is granted
    assert grading.levels([*entries[:1], entry("b.b", "L1", verdict, provisional=True)])["L1"] == "granted"
    untried = verdict in ("inconclusive", "error", "not run")
    found = grading.levels([*entries[:1], entry("b.b", "L1", verdict, ("lora",), provisional=True)])
    assert (found["L1"] == "granted") is not untried
    assert (grading.text_core(entries) == "granted") is granted
    assert grading.text_core([*entries[:1], entry("b.b", "L1", verdict, ("lora",))]) == "granted"


@pytest.mark.parametrize(
    ("verdicts", "state"),
    [
        (("pass", "pass"), "supported"),
        (("pass", "known"), "known failures"),
        (("pass", "fail"), "failing"),
        (("not run", "fail"), "failing"),
        (("pass", "not run"), "untested"),
        (("pass", "inconclusive"), "untested"),
        (("unsupported", "unsupported"), "unsupported"),
        (("pass", "unsupported"), "supported"),
        ((), "untested"),
    ],
)
def test_features(verdicts: tuple[str, ...], state: str) -> None:
    """A feature is supported when all its clauses passed; nobody having looked is a state of its own."""
    assert grading.extended([entry("a.a", "L1", verdict, ("lora",)) for verdict in verdicts], ("lora",)) == {"lora": state}


def test_a_provisional_failure_fails_no_feature() -> None:
    """It costs no level either."""
    entries = [entry("a.a", "L1", "pass", ("masks",)), entry("b.b", "L1", "fail", ("masks",), provisional=True)]
    assert grading.extended(entries, ("masks",)) == {"masks": "supported"}


def test_exit_status() -> None:
    """0 granted, 1 not granted, 3 a fault of the suite."""
    assert grading.exit_status([entry("a.a", "L1", "pass")], "L4") == 0
    assert grading.exit_status([entry("a.a", "L2", "fail")], "L1") == 0
    assert grading.exit_status([entry("a.a", "L2", "fail")], "L2") == 1
    assert grading.exit_status([entry("a.a", "L2", "error")], "L1") == 3


def clause(id: str, level: Level, essential: bool = False) -> Clause:
    """A clause that nobody tries."""
    return Clause(id, "A law.", level, lambda scene: None, essential=essential)


COURSE = (clause("a.a", Level.L0), clause("b.b", Level.L1, essential=True), clause("b.c", Level.L1), clause("c.c", Level.L2))


@pytest.mark.parametrize(
    ("failing", "options", "tried"),
    [
        ("", {}, ["a.a", "b.b", "b.c", "c.c"]),
        ("a.a", {}, ["a.a"]),
        ("b.b", {}, ["a.a", "b.b"]),
        ("b.c", {}, ["a.a", "b.b", "b.c"]),
        ("b.c", {"keep_going": True}, ["a.a", "b.b", "b.c", "c.c"]),
        ("b.b", {"keep_going": True}, ["a.a", "b.b"]),
        ("", {"absent": "no device"}, ["a.a"]),
    ],
)
def test_gates(failing: str, options: dict[str, Any], tried: list[str]) -> None:
    """A level waits for the one below, nothing runs after an essential clause has failed, and without a device there is L0 only."""

    def attempt(item: Clause) -> Result:
        return Result(item.id, Verdict.FAIL if item.id == failing else Verdict.PASS)

    for results in (
        list(run_clauses(COURSE, attempt, Selection(**options))),
        sorted(run_clauses_together(COURSE, [attempt], Selection(**options)), key=lambda pair: pair[0].id),
    ):
        assert [item.id for item, result in results if result.verdict is not Verdict.NOT_RUN] == tried
        assert all(result.message for _, result in results if result.verdict is Verdict.NOT_RUN)


def test_clauses_at_a_time() -> None:
    """As many clauses run at a time as there are processes for them, each of which runs one."""
    together, busy = threading.Barrier(3), [0, 0, 0]

    def attempt(number: int, item: Clause) -> Result:
        busy[number] += 1
        assert busy[number] == 1
        together.wait(60)  # until all three run something
        busy[number] -= 1
        return Result(item.id, Verdict.PASS)

    runs = [clause(f"h.{number}", Level.L1) for number in range(9)]
    results = dict(run_clauses_together(runs, [partial(attempt, number) for number in range(3)]))
    assert sorted(item.id for item in results) == [item.id for item in runs]
    assert {result.verdict for result in results.values()} == {Verdict.PASS}


def test_a_device_that_hangs_ends_the_run() -> None:
    """After three clauses in a row the rest is not run, and says why; a clause that comes to its end in between starts the count anew."""
    runs = [clause(f"h.{number}", Level.L1) for number in range(8)]

    def attempt(item: Clause) -> Result:
        hangs = item.id != "h.2"
        return Result(item.id, Verdict.FAIL if hangs else Verdict.PASS, timed_out=hangs)

    results = [result for _, result in run_clauses(runs, attempt)]
    assert [result.verdict for result in results[5:]] == [Verdict.FAIL, Verdict.NOT_RUN, Verdict.NOT_RUN]
    assert results[6].message == "h.5 and the 2 clauses before it reached the time limit"


@pytest.mark.parametrize(
    ("verdict", "until", "becomes"),
    [
        (Verdict.FAIL, TODAY, Verdict.KNOWN),
        (Verdict.FAIL, datetime.date(2026, 4, 30), Verdict.FAIL),
        (Verdict.PASS, TODAY, Verdict.FAIL),
        (Verdict.INCONCLUSIVE, TODAY, Verdict.FAIL),
        (Verdict.ERROR, TODAY, Verdict.ERROR),
        (Verdict.NOT_RUN, TODAY, Verdict.NOT_RUN),
    ],
)
def test_known_failures_are_strict(verdict: Verdict, until: datetime.date, becomes: Verdict) -> None:
    """They end on their date, and one that passes is wrong."""
    assert apply(Result("a.a", verdict), KnownFailure("a.a", "because", "ours", until), TODAY).verdict is becomes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[known", "known.toml"),
        ("x = 1", "tables"),
        ('[[known]]\nclause = "a.a"', "entry 1 needs"),
        ('[[known]]\nclause = "z.z"\nreason = "r"\nkind = "ours"\nuntil = 2026-01-01', "there is no clause 'z.z'"),
        ('[[known]]\nclause = "a.a"\nreason = "r"\nkind = "mine"\nuntil = 2026-01-01', "kind must be one of"),
        ('[[known]]\nclause = "a.a"\nreason = "r"\nkind = "ours"\nuntil = "soon"', "until must be a date"),
    ],
)
def test_broken_files_of_known_failures(text: str, message: str, tmp_path: Path) -> None:
    """One line names the file, the entry and what it needs."""
    (tmp_path / "known.toml").write_text(text)
    with pytest.raises(InvalidKnownFailures, match=message) as caught:
        read_known(tmp_path / "known.toml", {"a.a"})
    assert "known.toml" in str(caught.value) and "\n" not in str(caught.value)


def test_committed_reports() -> None:
    """They are as they were written, and the support matrix and the registry are made from them."""
    docs = Path(__file__).parents[2] / "docs"
    reports = document.read_all(docs / "conformance")
    assert {"cpu", "reference"} <= set(reports) == {path.stem for path in (docs / "conformance").glob("*.json")}
    assert (docs / "registry.md").read_text() == registry(reports.values()), "run make conformance"
    planned = ("cuda", "gaudi", "neuron", "rocm", "xpu")
    assert (docs / "support-matrix.md").read_text() == support_matrix(reports, planned), "run make conformance"


def test_a_third_level_that_saw_no_step_fail_says_so() -> None:
    """L3 is not granted where nothing makes a step fail, and the levels below it are."""
    entries = [entry("a.a", "L0", "pass"), entry("faults.rows", "L3", "unsupported")]
    found = grading.levels(entries)
    assert found == {"L0": "granted", "L1": "granted", "L2": "granted", "L3": "without faults (faults.rows: unsupported)"}
    assert grading.exit_status(entries, "L3") == 1 and grading.exit_status(entries, "L2") == 0
    assert (
        grading.levels([entries[0], entry("faults.rows", "L3", "pass"), entry("faults.derived", "L3", "unsupported")])["L3"]
        == "granted"
    )
