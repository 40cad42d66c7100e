"""What is wrong with device, software or memory is one line of `tgi serve`, and status 1."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.gaudi.standin import PACKAGES, environment, gaudi, packages
from tests.serve.process import TGI, free_port
from tests.serve.process import environment as variables


def started(folder: Path, stack: Path | None, **more: str) -> str:
    """The one line that a start ends with."""
    command = [*TGI, "serve", "--backend", "gaudi", "--hostname", "127.0.0.1", "--port", str(free_port())]
    extra = variables({**environment(folder, folder / "machine", stack), **more})
    done = subprocess.run(command, env=extra, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "error:" in line]
    return line


_OPEN = """
import sys
from tgi_backend_gaudi import plugin
from tgi_core.backend import BackendError, OpenOptions
try:
    plugin.backend_open(OpenOptions(sys.argv[1]), lambda *progress: None)
except BackendError as error:
    print(type(error).__name__, *[name for name in sys.argv[2:] if name in sys.modules])
"""


def refused(folder: Path, model: Path, modules: tuple[str, ...], **more: str) -> list[str]:
    """The kind of error that opening a model ends with, and which of these modules it has imported."""
    extra = {**environment(folder, folder / "machine"), **more}
    done = subprocess.run(
        [sys.executable, "-c", _OPEN, str(model), *modules], env=extra, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_no_software(tmp_path: Path) -> None:
    """Intel's software is missing."""
    gaudi(tmp_path / "machine")
    assert "Intel Gaudi2 was found; not installed: habana_frameworks" in started(tmp_path, None)


def test_another_torch(tmp_path: Path) -> None:
    """A torch of another version beside it: both are named."""
    gaudi(tmp_path / "machine")
    assert "with a habana_frameworks for torch 2.11" in started(tmp_path, packages(tmp_path / "stack", "2.11.0\n"))


def test_a_device_that_is_held(tmp_path: Path) -> None:
    """By a process that can be seen: it is named before torch is loaded."""
    machine = gaudi(tmp_path / "machine")
    (machine / "proc/41/fd").mkdir(parents=True)
    (machine / "proc/41/comm").write_text("python\n")
    (machine / "proc/41/fd/3").symlink_to("/dev/accel/accel0")
    assert "the Gaudi device is taken: /dev/accel/accel0 by process 41 (python)" in started(tmp_path, PACKAGES)


def test_a_device_that_somebody_else_holds(tmp_path: Path, llama: Path) -> None:
    """By a process that cannot be seen: the driver says so, before torch is loaded."""
    gaudi(tmp_path / "machine")
    assert "/dev/accel/accel0 by a process of another container or user; hl-smi" in started(tmp_path, PACKAGES, STANDIN_HELD="1")
    assert refused(tmp_path, llama, ("torch", "numpy", "transformers"), STANDIN_HELD="1") == ["DeviceBusy"]


def test_a_device_that_cannot_be_acquired(tmp_path: Path, llama: Path) -> None:
    """The bridge is asked before the engine is imported, and the model read."""
    gaudi(tmp_path / "machine")
    modules = ("transformers", "tgi_backend_gaudi.kit", "tgi_core.engine.static.session", "tgi_core.engine.decoder.weights")
    assert refused(tmp_path, llama, ("torch", *modules), STANDIN_TAKEN="1") == ["DeviceBusy", "torch"]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("STANDIN_TAKEN", "1", "the device is taken or cannot be opened; hl-smi shows which process holds it: synStatus=8"),
        ("STANDIN_BYTES", str(1 << 30), "programs of "),
    ],
    ids=["taken", "memory"],
)
def test_a_device_that_does_not_do(tmp_path: Path, name: str, value: str, expected: str) -> None:
    """One that another container holds, and one without the memory for all programs: the bytes of each part are named."""
    gaudi(tmp_path / "machine")
    assert expected in started(tmp_path, PACKAGES, **{name: value})
