"""The conformance suite on the device, through level 1: level 3 takes longer than all sections here, and has its own command."""

from __future__ import annotations

import json
import subprocess
import sys

from bench.gpu_parts.place import Figures, Place


def granted(place: Place) -> Figures:
    """Run the suite and return the levels that it grants. Its report is saved as conformance-BACKEND.json in the folder."""
    report = place.folder / f"conformance-{place.backend}.json"
    program = [sys.executable, "-c", "from tgi_conformance.cli import main; main()"]
    level = "L0" if place.small else "L1"
    command = [*program, "run", "--backend", place.backend, "--level", level, "--report", str(report), "--keep-going"]
    command += ["--failures", str(place.folder / "failures"), *(["--effort", "0.1"] if place.small else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=max(1.0, place.left - 2), check=False)
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
