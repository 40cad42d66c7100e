"""The threads of the native kernels."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tgi_backend_cpu import building
from tgi_backend_cpu.building import cpu_flags

NATIVE = Path(building.__file__).with_name("native")
RUNS = Path(__file__).with_name("pool_runs.cpp")


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_task_runs_once_and_in_its_phase(threads: int, program: Path) -> None:
    """Whatever the numbers of tasks and threads, and without a data race: nothing is read that another run may have changed."""
    done = subprocess.run([program, str(threads)], capture_output=True, text=True, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer does not run on this system")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program over a pool, with ThreadSanitizer."""
    found, variant = building.compiler(), building.VARIANTS[-1]
    if found is None or not variant.cpu_flags <= cpu_flags():
        pytest.skip("no compiler, or not its processor")
    made = tmp_path_factory.mktemp("pool") / "pool_runs"
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=thread", "-pthread", *variant.options]
    built = subprocess.run([found, *flags, f"-I{NATIVE}", RUNS, "-o", made], capture_output=True, text=True, check=False)
    if "tsan" in built.stderr:
        pytest.skip("the compiler comes without ThreadSanitizer")
    assert built.returncode == 0, built.stderr
    return made
