"""The benchmark of the device, on a machine without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = [sys.executable, str(ROOT / "bench/gpu.py")]
SECTIONS = ["conformance", "kernels", "attention", "qwen3-0.6b", "ablations", "http"]


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The script, writing into the folder."""
    command = [*SCRIPT, *arguments, "--out", str(folder / "found.json"), "--folder", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, cwd=folder)


def test_without_a_device(tmp_path: Path) -> None:
    """One line says what is missing, and nothing is written."""
    done = run(folder=tmp_path)
    assert done.returncode == 1 and not done.stdout and done.stderr.startswith("bench/gpu.py: no NVIDIA device")
    assert len(done.stderr.splitlines()) == 1 and not (tmp_path / "found.json").exists()


def test_its_code_on_the_cpu(tmp_path: Path) -> None:
    """With tiny problems on the CPU backend every section of ours yields figures, with date, versions and device."""
    done = run("--device", "cpu", "--small", "--only", *SECTIONS, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["small"] and found["date"] and found["devices"] and found["versions"]["torch"]
    assert [name for name, section in found["sections"].items() if section["status"] == "done"] == SECTIONS, found
    assert found["sections"]["conformance"]["figures"]["level L0"] == "granted"
    assert set(found["sections"]["kernels"]["figures"].values()) == {"agrees with float32"}
    rates = [value for name, value in found["sections"]["http"]["figures"].items() if "tokens/s" in name]
    assert len(rates) == 4 and all(value > 0 for value in rates)


def test_a_section_without_time_is_told(tmp_path: Path) -> None:
    """What finds no time, or is ended, is in the report as not run, with the reason."""
    run("--device", "cpu", "--small", "--minutes", "0.001", "--only", "kernels", "attention", folder=tmp_path)
    sections = json.loads((tmp_path / "found.json").read_text())["sections"]
    assert all(section["status"] == "not run" and section["reason"] for section in sections.values())
