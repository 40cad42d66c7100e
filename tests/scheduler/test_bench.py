"""The scheduler's benchmark runs, and what it serves is served."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.scheduling import ours, tgi, trace
from bench.scheduling.device import Roofline
from tgi_core.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]


def test_the_script(tmp_path: Path) -> None:
    """A small run writes a cost, a row per load and policy, and two per rate for a device that pads."""
    out = tmp_path / "out.json"
    command = [sys.executable, str(ROOT / "bench" / "scheduler.py"), "--requests", "12", "--steps", "3", "--json", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    report = json.loads(out.read_text())
    assert set(report["cost_us"]) == {"a", "b"} and len(report["runs"]) == 8
    assert [row["cut"] for row in report["padded"]] == ["anywhere", "to the sizes"] * 3


def test_both_policies_serve_everyone(demo_tokenizer: Tokenizer) -> None:
    """Ours and TGI's: each request once, none before it came, and no schedule beats the bound."""
    roofline = Roofline(num_blocks=1500)
    arrivals = trace.make(30, seed=1)
    for served in (ours.Simulation(roofline, demo_tokenizer).run(arrivals), tgi.run(roofline, arrivals)):
        assert sorted(item.arrival.at for item in served) == [item.at for item in arrivals]
        assert all(item.arrival.at < item.first <= item.last for item in served)
        assert max(item.last for item in served) >= roofline.bound(arrivals)
