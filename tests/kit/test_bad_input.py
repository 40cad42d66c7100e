"""What is wrong with a plugin or a file that somebody else wrote is one clear line and the right exit status, never a traceback.

Plugins are installed ones here: a folder with metadata, as pip leaves it. Status 1: not granted; 2: wrong usage; 3: a fault of the suite.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tgi_conformance.report.document import written

from tests.serve.process import run as tgi
from tgi_core.backend import API_VERSION

PROGRAM = str(Path(sys.executable).with_name("tgi-conformance"))

SOUND = """
from tgi_core.backend import Manifest, OpenOptions, Probe, ProbeStatus, hookimpl
from tgi_core.backend import reference

@hookimpl
def backend_manifest():
    return Manifest("faulty", "a vendor", "1.0", (1, 0), (1, 0), "none")

@hookimpl
def backend_probe():
    return Probe(ProbeStatus.READY, devices=("a toy",))

@hookimpl
def backend_open(options):
    return reference.backend_open(options)
"""


def conformance(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program as a vendor runs it, in a folder that is also on the path."""
    variables = dict(os.environ) | {"PYTHONPATH": str(folder)}
    return subprocess.run(
        [PROGRAM, *arguments], capture_output=True, text=True, timeout=120, cwd=folder, env=variables, check=False
    )


def installed(folder: Path, *changes: tuple[str, str]) -> None:
    """A sound plugin called `faulty`, with some of its text replaced."""
    text = SOUND
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    (folder / "faulty_plugin.py").write_text(text)
    metadata = folder / "faulty-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[tgi.backends]\nfaulty = faulty_plugin\n")


FAULTS = {
    "raises at import": (("\n@hookimpl", "raise SystemError('too old')\n@hookimpl"), "package.loads", "SystemError: too old"),
    "probe hangs": (("return Probe(", "import time; time.sleep(600); return Probe("), "package.probe", "took more than 2 s"),
    "probe is None": (("return Probe(", "Probe("), "package.probe", "NoneType, not a Probe"),
    "manifest is None": (("return Manifest(", "Manifest("), "package.loads", "backend_manifest returned NoneType"),
    "session is None": (("return reference.", "reference."), "open.capabilities", "backend_open returned None"),
    "lies about its name": (('"faulty"', '"cuda"'), "package.manifest", "the entry point is named faulty, the manifest cuda"),
    "needs a newer minor": (("(1, 0), (1, 0)", "(1, 99), (1, 99)"), "package.api", "needs backend API 1.99, this tgi-core has {}.{}"),
    "READY without a device": (('("a toy",)', "()"), "package.probe", "READY but names no device"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_plugins(fault: str, tmp_path: Path) -> None:
    """Not granted: the clause that it breaks, and what is wrong, on one line each."""
    change, clause, words = FAULTS[fault]
    installed(tmp_path, change)
    limit = "2" if fault == "probe hangs" else "60"
    done = conformance(tmp_path, "run", "--backend", "faulty", "--level", "L1", "--time-limit", limit, "--only", clause)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"fail         {clause}" in done.stdout
    assert [line for line in done.stdout.splitlines() if words.format(*API_VERSION) in line], done.stdout
    assert "Traceback" not in done.stdout + done.stderr


BROKEN_ROWS = """
class Broken(reference.ReferenceSession):
    @hookimpl
    def rows(self, step):
        {}
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("import time; time.sleep(600)", "#2 rows of step #1 did not return within 6 s, the --time-limit of a clause"),
        ("import os; os._exit(3)", "the process ended while it ran: exit status 3, in #2 rows of step #1"),
        (
            "raise RuntimeError('queue full (0x17)')",
            "raised RuntimeError: queue full (0x17) (raised at faulty_plugin.py:8); this call is valid and must succeed",
        ),
    ],
)
def test_a_session_that_hangs_crashes_or_raises(line: str, words: str, tmp_path: Path) -> None:
    """Which call it was, with those before it; after three clauses that hung the rest is not run."""
    made = "Broken(reference.backend_open(options)._vocab_size, 128, masks=options.masks)"
    installed(
        tmp_path,
        ("\n@hookimpl", f"{BROKEN_ROWS.format(line)}\n@hookimpl"),
        ("return reference.backend_open(options)", f"return {made}"),
    )
    limit = "6" if "sleep" in line else "60"
    done = conformance(tmp_path, "run", "--backend", "faulty", "--level", "L1", "--time-limit", limit, "--only", "handles")
    assert done.returncode == 1 and words in done.stdout, done.stdout + done.stderr
    assert "      #1 prefill row 1 (" in done.stdout
    assert done.stdout.count("did not return within") == (3 if "sleep" in line else 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[known]\n", "conformance.toml: "),
        ("known = 3\n", "may contain only [[known]] tables"),
        ('[[known]]\nclause = "no.such"\nreason = "r"\nkind = "ours"\nuntil = 2099-01-01\n', "there is no clause 'no.such'"),
        ('[[known]]\nclause = "open.stats"\nreason = "r"\nkind = "later"\nuntil = 2099-01-01\n', "kind must be one of ours"),
        ('[[known]]\nclause = "open.stats"\nreason = "r"\nkind = "ours"\nuntil = "soon"\n', "until must be a date"),
    ],
)
def test_broken_known_failures(text: str, words: str, tmp_path: Path) -> None:
    """Wrong usage: one line with the file and the entry."""
    (tmp_path / "conformance.toml").write_text(text)
    done = conformance(tmp_path, "run", "--backend", "reference", "--level", "L0")
    assert done.returncode == 2 and done.stdout == ""
    assert words in done.stderr and "conformance.toml" in done.stderr and done.stderr.count("\n") == 1


def test_an_unknown_backend(tmp_path: Path) -> None:
    """Wrong usage: one line with what is installed."""
    done = conformance(tmp_path, "run", "--backend", "nobody")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("Error: --backend nobody: not installed (installed: ") and "reference" in done.stderr


def test_an_expired_known_failure_and_an_edited_report(tmp_path: Path) -> None:
    """Not granted, both: the first says when it expired, the second that the report is not what the suite wrote."""
    entry = '[[known]]\nclause = "open.stats"\nreason = "no counters"\nkind = "ours"\nuntil = 2020-01-01\n'
    (tmp_path / "conformance.toml").write_text(entry)
    arguments = ("run", "--backend", "mutant:stats-stand-still", "--only", "open.stats", "--report", "r.json")
    done = conformance(tmp_path, *arguments)
    assert done.returncode == 1 and "known until 2020-01-01, which has passed (no counters)" in done.stdout
    report = json.loads((tmp_path / "r.json").read_text())
    next(result for result in report["results"] if result["id"] == "open.stats")["verdict"] = "pass"
    (tmp_path / "r.json").write_text(written(report))
    done = conformance(tmp_path, "verify", "r.json")
    assert done.returncode == 1 and done.stderr.startswith("r.json: its digest does not match its content: it was edited")
    assert "Traceback" not in done.stderr


def test_a_fault_of_the_suite(tmp_path: Path) -> None:
    """Status 3, with the place: a scenario that breaks is not held against the backend."""
    code = """
import sys
from tgi_conformance import clause_run
from tgi_conformance.clauses import CLAUSES
from tgi_conformance.cli import main
from tgi_conformance.result import Result
from tgi_conformance.verdict import Verdict
from tgi_conformance import running
running.Worker.__call__ = lambda self, clause: Result(clause.id, Verdict.ERROR, "KeyError: 3 (scenario_steps.py:7)")
main(["run", "--backend", "reference", "--level", "L0"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
    assert done.returncode == 3 and "error        package.loads" in done.stdout and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("(1, 0), (1, 0)", "(1, 99), (1, 99)"), "incompatible: needs backend API 1.99, this tgi-core has {}.{}"),
        (("import reference\n", "import reference\nraise SystemError('too old')\n"), "broken: SystemError: too old"),
    ],
)
def test_the_server_says_the_same(change: tuple[str, str], words: str, tmp_path: Path) -> None:
    """`tgi serve --backend` refuses such a plugin in one line, with its reason."""
    installed(tmp_path, change)
    done = tgi("serve", "--backend", "faulty", "--port", "0", extra={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    begun, *error = done.stderr.splitlines()
    assert begun == "starting to serve the bundled demo model"
    assert error == ["tgi: error: --backend faulty: " + words.format(*API_VERSION)]


def test_a_plugin_is_looked_at_once(tmp_path: Path) -> None:
    """A probe may take seconds and wake a device: a run over the package starts it in one child, whatever the clauses ask of it."""
    installed(tmp_path, ("return Probe(", "open('probed', 'a').write('x'); return Probe("))
    done = conformance(tmp_path, "run", "--backend", "faulty", "--level", "L0")
    assert done.returncode == 0 and (tmp_path / "probed").read_text() == "x", done.stdout + done.stderr


@pytest.mark.parametrize("feature", ["LORA", "MEDIA", "TENSOR_PARALLEL"])
def test_what_is_claimed_falsely_is_not_granted(feature: str, tmp_path: Path) -> None:
    """A feature that is declared and cannot be shown stands in the way of L2, in one line that names it; L1 is not touched."""
    lie = f"""
class Liar(reference.ReferenceSession):
    @hookimpl
    def capabilities(self):
        found = super().capabilities()
        return replace(found, features=found.features | {{Feature.{feature}}})
"""
    installed(
        tmp_path,
        ("import Manifest", "import Feature, Manifest"),
        ("\n@hookimpl", f"\nfrom dataclasses import replace\n{lie}\n@hookimpl"),
        (
            "    return reference.backend_open(options)",
            "    return Liar(reference.backend_open(options)._vocab_size, 128, masks=options.masks)",
        ),
    )
    done = conformance(tmp_path, "run", "--backend", "faulty", "--level", "L2", "--effort", "0.1")
    assert done.returncode == 1, done.stdout + done.stderr
    topic = {"TENSOR_PARALLEL": "ranks"}.get(feature, feature.lower())
    lines = done.stdout.splitlines()
    assert "L1  granted" in lines and any(line.startswith(f"L2  {topic}.") for line in lines), done.stdout
