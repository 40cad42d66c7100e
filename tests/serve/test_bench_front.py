"""The benchmark of serving runs, and counts every token."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_script(tmp_path: Path) -> None:
    """A small run of both forms and both routes tells tokens, and the CPU time of each process."""
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "bench.front", "--streams", "2", "--tokens", "8", "--seconds", "0.2"]
    subprocess.run([*command, "--json", str(out)], check=True, capture_output=True, cwd=ROOT)
    runs = {(run["form"], run["route"]): run["measured"] for run in json.loads(out.read_text())}
    assert {form: len(made["cpu"]) for (form, _), made in runs.items()} == {"child": 2, "in-process": 1}
    assert len(runs) == 4 and all(made["tokens"] > 0 and made["first"][0] > 0 for made in runs.values())
