"""The command line: verdicts, files, exit statuses; bad input gets one clear line and no traceback."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from click.testing import CliRunner
from tgi_conformance.cli import main
from tgi_conformance.report.document import SCHEMA_FILE, digest_of, grades, written
from tgi_conformance.report.schema import schema

PROGRAM = Path(sys.executable).with_name("tgi-conformance")


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: object, folder: Path) -> Done:
    """The program's own entry, in a folder."""
    with contextlib.chdir(folder):
        result = CliRunner().invoke(main, list(map(str, arguments)))
    trace = "" if result.exception is None or isinstance(result.exception, SystemExit) else f"Traceback {result.exception!r}"
    return Done(result.exit_code, result.stdout, result.stderr + trace)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the reports of a whole run over the reference backend up to L3."""
    folder = tmp_path_factory.mktemp("run")
    options = ("--report", "report.json", "--html", "report.html", "--junit", "report.xml", "--badge", "badge.svg")
    done = run("run", "--backend", "reference", "--effort", "0.5", "--level", "L3", *options, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "L3  granted" in done.stdout and "text-core  granted" in done.stdout
    return folder


def document(folder: Path) -> Any:
    """Its report."""
    return json.loads((folder / "report.json").read_text())


def test_report_keeps_its_schema(folder: Path) -> None:
    """And the committed schema is the one that the code makes."""
    assert json.loads(SCHEMA_FILE.read_text()) == schema()
    jsonschema.validate(document(folder), schema())


def test_report_verifies(folder: Path) -> None:
    """As it was written it is believed."""
    done = run("verify", "report.json", folder=folder)
    assert (done.returncode, done.stderr) == (0, "") and "L3  granted" in done.stdout


def test_badge(folder: Path) -> None:
    """The highest level; a backend that runs on no hardware says so."""
    root = ET.parse(folder / "badge.svg").getroot()  # noqa: S314  our own file
    assert root.get("aria-label") == "tgi-core: L3 granted, no hardware"


def test_diff(folder: Path, tmp_path: Path) -> None:
    """What is as before is not told; a clause that has come to fail is, with the levels that go with it, and costs the exit status."""
    old = document(folder)
    failed = document(folder)
    entry = next(entry for entry in failed["results"] if entry["id"] == "order.batch")
    entry["verdict"], entry["message"] = "fail", "rows came in another order"
    failed |= grades(failed["results"])
    for name, report in (("old", old), ("failed", failed), ("edited", old | {"seconds": 0.1})):
        if name != "edited":
            report["digest"] = digest_of(report)
        (tmp_path / f"{name}.json").write_text(written(report))
    assert run("diff", "old.json", "old.json", folder=tmp_path) == Done(0, "nothing changed\n", "")
    worse = run("diff", "old.json", "failed.json", folder=tmp_path)
    assert worse.returncode == 1 and worse.stdout.splitlines()[-1] == (
        "worse  order.batch: pass → fail: rows came in another order"
    )
    assert "worse  L1: granted → order.batch: fail" in worse.stdout and "worse  text-core:" in worse.stdout
    better = run("diff", "failed.json", "old.json", folder=tmp_path)
    assert better.returncode == 0 and "       order.batch: fail → pass" in better.stdout
    assert run("diff", "old.json", "edited.json", folder=tmp_path).returncode == 2


@pytest.mark.parametrize("resigned", [False, True])
@pytest.mark.parametrize("edit", ["verdict", "level", "clause", "sentence", "seconds"])
def test_edits_are_found(edit: str, resigned: bool, folder: Path, tmp_path: Path) -> None:
    """By the digest; and where somebody has made a new digest, by what does not follow from the results or is not the suite's."""
    report = document(folder)
    match edit:
        case "verdict":
            report["results"][8]["verdict"] = "fail"
        case "level":
            report["levels"]["L3"] = "not granted"
        case "clause":
            del report["results"][20]
        case "sentence":
            report["results"][3]["sentence"] = "Anything goes."
        case "seconds":
            report["seconds"] = 0.1
    if resigned:
        report["digest"] = digest_of(report)
    (tmp_path / "edited.json").write_text(written(report))
    done = run("verify", "edited.json", folder=tmp_path)
    believed = resigned and edit == "seconds"
    assert done.returncode == (0 if believed else 1)
    assert "Traceback" not in done.stderr and bool(done.stderr) is not believed


def test_junit_and_page(folder: Path) -> None:
    """Every clause is in both, and the page needs nothing from anywhere."""
    ids = {entry["id"] for entry in document(folder)["results"]}
    cases = ET.parse(folder / "report.xml").getroot().iter("testcase")  # noqa: S314  our own file
    assert {case.get("name") for case in cases} == ids
    page = (folder / "report.html").read_text()
    assert all(f'id="{id}"' in page for id in ids)
    assert "<script" not in page and "http://" not in page and "https://" not in page and "src=" not in page


def test_a_failure_and_its_replay(tmp_path: Path) -> None:
    """Clause, sentence, shortest sequence, and a command that shows it again; exit status 1."""
    done = run("run", "--backend", "mutant:filter-compares-counts", "--only", "isolation", folder=tmp_path)
    assert done.returncode == 1
    assert "fail         isolation.ids-not-counts" in done.stdout and "Filter compares ids, not counts" in done.stdout
    command = next(line for line in done.stdout.splitlines() if "again:" in line).split()[2:]
    again = run(*command, folder=tmp_path)
    assert (
        again.returncode == 1 and "FAIL #2 filter #1 to rows [1, 777777] succeeded, and must raise UnknownRequest" in again.stdout
    )
    sound = run(*command, "--backend", "reference", folder=tmp_path)
    assert sound.returncode == 0 and "refused as it must be" in sound.stdout
    both = run(*command, command[-1], folder=tmp_path)
    assert both.returncode == 1 and "2 of 2 failures are still there" in both.stdout


@pytest.mark.parametrize(("version", "provisional"), [((1, 8), True), ((1, 9), False)])
def test_a_provisional_failure_says_that_it_blocks_nothing(
    version: tuple[int, int], provisional: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line of a clause that is new in the contract says that its failure costs no level; others don't."""
    monkeypatch.setattr("tgi_conformance.clause.API_VERSION", version)
    done = run("run", "--backend", "mutant:own-block-refused", "--only", "windows.itself", folder=tmp_path)
    assert "fail         windows.itself" in done.stdout
    assert ("windows.itself  (provisional: it does not count for the level)" in done.stdout) == provisional
    done = run("run", "--backend", "mutant:windowed", "--only", "windows.itself", folder=tmp_path)
    assert "windows.itself" in done.stdout and "provisional" not in done.stdout


def test_a_run_leaves_only_its_outputs(tmp_path: Path) -> None:
    """A folder in which the suite ran holds nothing of hypothesis'."""
    assert run("run", "--backend", "reference", "--only", "machine.laws", folder=tmp_path).returncode == 0
    assert not list(tmp_path.iterdir())


def test_known_failures(tmp_path: Path) -> None:
    """conformance.toml in the working directory makes a failure KNOWN until its date."""
    text = '[[known]]\nclause = "open.stats"\nreason = "no counters"\nkind = "ours"\nuntil = {}\n'
    for until, status, verdict in (("2099-01-01", 0, "known"), ("2020-01-01", 1, "fail")):
        (tmp_path / "conformance.toml").write_text(text.format(until))
        done = run("run", "--backend", "mutant:stats-stand-still", "--only", "open.stats", folder=tmp_path)
        assert done.returncode == status and f"{verdict:<12} open.stats" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "--backend", "nobody"), "--backend nobody: not installed"),
        (("run", "--backend", "mutant:nobody"), "no such mutant"),
        (("run", "--backend", "reference", "--only", "nothing"), "--only nothing: there is no such clause or topic"),
        (("run", "--backend", "reference", "--model", "nowhere"), "nowhere"),
        (("run", "--backend", "reference", "--known", "absent.toml"), "absent.toml"),
        (("verify", "absent.json"), "absent.json: No such file"),
        (("replay", "absent.jsonl"), "absent.jsonl: No such file"),
        (("matrix", "absent"), "absent"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    """Exit status 2, what is wrong, and no traceback."""
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["raises-at-import", "probe-crashes", "absent-without-reason", "needs-the-future"])
def test_broken_packages(name: str, tmp_path: Path) -> None:
    """L0 says what is wrong with a plugin that cannot even be opened; nothing deeper is tried."""
    done = run("run", "--backend", f"mutant:{name}", "--level", "L1", "--report", "r.json", folder=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["levels"]["L0"] != "granted"
    assert {entry["verdict"] for entry in report["results"] if entry["level"] == "L1"} == {"not run"}


def test_list(tmp_path: Path) -> None:
    """Every clause with its id and law."""
    lines = [json.loads(line) for line in run("list", "--json", folder=tmp_path).stdout.splitlines()]
    assert len(lines) > 100 and all(line["sentence"].endswith(".") for line in lines)
    program = subprocess.run([PROGRAM, "list", "--level", "L0"], capture_output=True, text=True, check=True, timeout=60)
    assert program.stdout.startswith("L0  package.loads")


def test_support_matrix(folder: Path, tmp_path: Path) -> None:
    """From reports; a backend without one is Untested in every cell, and an edited report is not taken."""
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "reference.json").write_text((folder / "report.json").read_text())
    done = run("matrix", "reports", "--planned", "cuda", folder=tmp_path)
    lines = done.stdout.splitlines()
    assert "| L3 resilience | granted | Untested |" in lines and "| media | no | Untested |" in lines
    (tmp_path / "reports" / "reference.json").write_text((folder / "report.json").read_text().replace('"granted"', '"given"'))
    assert run("matrix", "reports", folder=tmp_path).returncode == 2


def test_registry(folder: Path, tmp_path: Path) -> None:
    """A row for each report; a file that is no report, and a place that cannot be written, are named."""
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "reference.json").write_text((folder / "report.json").read_text())
    done = run("registry", "reports", "--out", "page.md", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    row = next(line for line in (tmp_path / "page.md").read_text().splitlines() if line.startswith("| `reference` |"))
    assert "| L3 | granted | no device: a toy model |" in row and "](conformance/reference.json)" in row
    (tmp_path / "reports" / "other.json").write_text("{}")
    assert "other.json" in run("registry", "reports", folder=tmp_path).stderr
    (tmp_path / "reports" / "other.json").unlink()
    assert "absent/page.md" in run("registry", "reports", "--out", "absent/page.md", folder=tmp_path).stderr
