"""The conformance suite on the device, several clauses at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from bench.gpu_parts.place import Figures, Place


def granted(place: Place, level: str) -> Figures:
    """Run the suite up to a level and return the levels that it grants. Its report is saved as conformance-BACKEND.json in the folder."""
    report = place.folder / f"conformance-{place.backend}.json"
    program = [sys.executable, "-c", "from tgi_conformance.cli import main; main()"]
    level = "L0" if place.small else level
    command = [*program, "run", "--backend", place.backend, "--level", level, "--report", str(report), "--keep-going"]
    command += ["--processes", str(min(14, os.cpu_count() or 1))]
    command += ["--failures", str(place.folder / "failures"), *(["--effort", "0.1"] if place.small else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(1.0, place.left - 2), check=False)
    except subprocess.TimeoutExpired as late:
        return _as_far_as_it_came((late.stdout or b"").decode())
    if not report.exists():
        said = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
        return {"not run": f"the suite printed: {said[-1][:200]}"}
    made = json.loads(report.read_text())
    verdicts = [result["verdict"] for result in made["results"]]
    failed = [f"{result['id']}: {result['message'][:80]}" for result in made["results"] if result["verdict"] == "fail"]
    figures: Figures = {f"level {level}": outcome for level, outcome in made["levels"].items()}
    figures |= {
        "text-core": made["text_core"],
        "clauses passed": verdicts.count("pass"),
        "clauses failed": verdicts.count("fail"),
    }
    return figures | {f"failed {number}": text for number, text in enumerate(failed[:10], 1)}


def _as_far_as_it_came(printed: str) -> Figures:
    """What the suite had printed, a clause per line, when its time was up."""
    lines = [line.split(maxsplit=3) for line in printed.splitlines() if line.startswith("L")]
    failed = [" ".join(words[2:]) for words in lines if words[1:2] == ["fail"]]
    passed = sum(words[1:2] == ["pass"] for words in lines)
    found: Figures = {"not done in time; clauses passed": passed, "clauses failed": len(failed)}
    return found | {f"failed {number}": text[:120] for number, text in enumerate(failed[:10], 1)}
