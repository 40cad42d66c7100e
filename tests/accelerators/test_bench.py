"""The benchmark of the device, on a machine without one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import gpu
from bench.gpu_parts.children import run_group
from tests.accelerators.bare import bare_environment, bare_python, write_wheels
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = [sys.executable, str(ROOT / "bench/gpu.py")]
MISSING = "not installed: fastapi, httptools, uvicorn"
SECTIONS = ["conformance L1", "kernels", "attention", "qwen3-0.6b", "ablations"]


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The script, writing into the folder."""
    command = [*SCRIPT, *arguments, "--out", str(folder / "found.json"), "--folder", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, cwd=folder)


def test_without_a_device(tmp_path: Path) -> None:
    """One line says what is missing, and nothing is written."""
    done = run(folder=tmp_path)
    assert done.returncode == 1 and not done.stdout and done.stderr.startswith("bench/gpu.py: no NVIDIA device")
    assert len(done.stderr.splitlines()) == 1 and not (tmp_path / "found.json").exists()


@pytest.mark.timeout(900)
def test_the_whole_path_on_a_bare_machine(tmp_path: Path) -> None:
    """Where nothing of ours is installed, the script installs the wheels at hand; with tiny problems on the CPU backend every section that
    serves no HTTP yields figures, with date, versions and device, and the one that does says what is missing."""
    write_wheels(tmp_path / "wheels")
    command = [bare_python(), str(ROOT / "bench/gpu.py"), "--device", "cpu", "--small", "--only", *SECTIONS, "http"]
    command += [
        "--minutes",
        "30",
        "--wheels",
        str(tmp_path / "wheels"),
        "--out",
        str(tmp_path / "found.json"),
        "--folder",
        str(tmp_path),
    ]
    environment = bare_environment(tmp_path / "packages")
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["small"] and found["date"] and found["devices"] and found["versions"]["tgi-backend-cpu"] == "0.1.0"
    assert [name for name, section in found["sections"].items() if section["status"] == "done"] == SECTIONS, found
    assert found["sections"]["conformance L1"]["figures"]["level L0"] == "granted"
    assert set(found["sections"]["kernels"]["figures"].values()) == {"agrees with float32", "TGI_CPU_KERNELS=torch"}
    assert found["sections"]["http"] == {**found["sections"]["http"], "status": "not run", "reason": MISSING}


def test_a_bare_machine_without_wheels(tmp_path: Path) -> None:
    """One line says which wheels are missing and how to build them."""
    command = [bare_python(), str(ROOT / "bench/gpu.py"), "--device", "cpu", "--wheels", str(tmp_path)]
    environment = bare_environment(tmp_path / "packages")
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "tgi-core, tgi-backend-cpu, tgi-conformance not installed" in done.stderr
    assert "make wheels" in done.stderr and len(done.stderr.splitlines()) == 1


def test_http(tmp_path: Path) -> None:
    """Where a server can run, streams through it are measured beside the same requests without one."""
    done = run("--device", "cpu", "--small", "--only", "http", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    rates = [value for name, value in found["sections"]["http"]["figures"].items() if "tokens/s" in name]
    assert len(rates) == 4 and all(value > 0 for value in rates)


def test_a_section_without_time_is_told(tmp_path: Path) -> None:
    """What finds no time, or is ended, is in the report as not run, with the reason."""
    run("--device", "cpu", "--small", "--minutes", "0.001", "--only", "kernels", "attention", folder=tmp_path)
    sections = json.loads((tmp_path / "found.json").read_text())["sections"]
    assert all(section["status"] == "not run" and section["reason"] for section in sections.values())


def test_sections_fit_in_the_limit() -> None:
    """All sections at their limits, and three seconds to end each, take no longer than the run may, which is one call of nine minutes."""
    for sections in (gpu.SECTIONS, gpu.FIRST_DAY):
        assert sum(section.most + 3 for section in sections) <= gpu.MINUTES * 60 <= 540
        assert all(section.needs <= section.most for section in sections)


def test_a_first_day(tmp_path: Path) -> None:
    """What must hold on a new device yields its findings on the CPU backend too: tokens are equal by every way of running."""
    names = ["random steps", "far offsets", "openings", "batches llama-3.1-8b", "sampled qwen3-0.6b"]
    done = run("--device", "cpu", "--small", "--first-day", "--only", *names, "--logs", str(tmp_path / "logs"), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    sections = _sections(tmp_path)
    assert {name: sections[name]["status"] for name in names} == dict.fromkeys(names, "done"), sections
    equal = [
        str(value) for name, value in sections["random steps"]["figures"].items() if name.endswith(("off", "torch's operators"))
    ]
    assert len(equal) == 9 and all(value.startswith("equal, ") for value in equal), equal
    assert all(str(value).startswith("equal ") for value in sections["far offsets"]["figures"].values())
    assert len(list((tmp_path / "logs").iterdir())) == len(names)


SLEEPER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_section_s_processes_end_with_it(tmp_path: Path) -> None:
    """A section that is not done in time ends with all that it started, even with what ignores being asked."""
    with (tmp_path / "log").open("w+") as log:
        how = run_group([sys.executable, "-c", SLEEPER], log, 3)
        log.seek(0)
        pid = int(log.readline())
    assert how == "not done after 3 s" and not _runs(pid)


def test_a_run_survives_a_section_that_is_killed(tmp_path: Path) -> None:
    """What was measured before a section that is killed in the middle is kept, and what comes after it is measured."""
    command = [*SCRIPT, "--device", "cpu", "--small", "--only", "kernels", "attention", "qwen3-0.6b"]
    command += ["--out", str(tmp_path / "found.json"), "--folder", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as script:
        wait_until(lambda: "kernels" in _sections(tmp_path))
        kernels = _sections(tmp_path)["kernels"]
        wait_until(lambda: _killed(_child(script.pid)))
        script.communicate()
    found = _sections(tmp_path)
    assert found["kernels"] == kernels and kernels["status"] == found["qwen3-0.6b"]["status"] == "done"
    assert found["attention"]["status"] == "not run" and found["attention"]["reason"].startswith("exit status -9")


def _sections(folder: Path) -> dict[str, Any]:
    file = folder / "found.json"
    return json.loads(file.read_text())["sections"] if file.exists() else {}  # type: ignore[no-any-return]


def _killed(child: int) -> bool:
    """Kill a process group; False where there is none, since the section before may just have ended."""
    try:
        if child:
            os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return child != 0


def _child(parent: int) -> int:
    """A child of a process; 0 where there is none."""
    return int((Path(f"/proc/{parent}/task/{parent}/children").read_text().split() or ["0"])[0])
