"""What is wrong at start is one line that names the file or the flag: no traceback, exit status 1."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serve.process import TGI, environment, run
from tgi_core.model_files import DEMO

Break = Callable[[Path], object]


def remove(name: str) -> Break:
    """Take a file away."""
    return lambda model: (model / name).unlink()


def edit(name: str, **changes: object) -> Break:
    """Change keys of a JSON file."""

    def apply(model: Path) -> None:
        path = model / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return apply


def write(name: str, content: bytes) -> Break:
    """Put other bytes into a file."""
    return lambda model: (model / name).write_bytes(content)


def truncate(model: Path) -> None:
    """Cut the last kilobyte of the weights off."""
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1024])


def rename_tensor(model: Path) -> None:
    """Give one tensor a name that the model does not have."""
    path = model / "model.safetensors"
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = data[8 : 8 + size].replace(b"model.norm.weight", b"model.nerm.weight")
    path.write_bytes(data[:8] + header + data[8 + size :])


def index(model: Path) -> None:
    """An index that names a file which is not there."""
    weights = {"model.norm.weight": "model-00001-of-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    (model / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("broken", "names"),
    [
        pytest.param(remove("config.json"), ["config.json", "not found"], id="no config"),
        pytest.param(write("config.json", b"{"), ["config.json", "JSON"], id="config not JSON"),
        pytest.param(edit("config.json", model_type="nope"), ["config.json", "nope"], id="unknown model type"),
        pytest.param(remove("tokenizer.json"), ["tokenizer.json", "not found"], id="no tokenizer"),
        pytest.param(write("tokenizer.json", b"{}"), ["tokenizer.json", "not a tokenizer"], id="broken tokenizer"),
        pytest.param(remove("model.safetensors"), ["safetensors"], id="no weights"),
        pytest.param(truncate, ["model.safetensors"], id="truncated"),
        pytest.param(write("model.safetensors", b"\xff" * 64), ["model.safetensors"], id="corrupt header"),
        pytest.param(write("model.safetensors", b""), ["model.safetensors"], id="empty file"),
        pytest.param(rename_tensor, ["model.safetensors", "model.norm.weight"], id="missing tensor"),
        pytest.param(index, ["model-00001-of-00002.safetensors"], id="index names a missing file"),
        pytest.param(edit("config.json", vocab_size=4096), ["model.safetensors", "shape"], id="wrong shape"),
    ],
)
def test_a_broken_model(tmp_path: Path, broken: Break, names: list[str]) -> None:
    """The line names the file, and what is wrong with it."""
    model = tmp_path / "model"
    shutil.copytree(DEMO, model)
    broken(model)
    failed(run("serve", "--backend", "cpu", "--hostname", "127.0.0.1", "--port", "0", str(model)), names)


def failed(result: object, names: list[str]) -> None:
    """Exit status 1, one line that starts with the program's name and holds all of `names`, no traceback."""
    stderr = result.stderr  # type: ignore[attr-defined]
    assert result.returncode == 1, stderr  # type: ignore[attr-defined]
    assert "Traceback" not in stderr
    line = stderr.strip().splitlines()[-1]
    assert line.startswith("tgi: error: ")
    assert not [name for name in names if name not in line], line


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["/not/there"], ["/not/there", "no such directory"]),
        (["--backend", "nope"], ["--backend nope", "not installed", "pip install tgi-backend-nope"]),
        (["--kv-cache-tokens", "8"], ["--kv-cache-tokens 8", "block"]),
        (["--kv-cache-tokens", "64", "--max-total-tokens", "512"], ["512", "blocks"]),
        (["--max-input-tokens", "9", "--max-total-tokens", "9"], ["--max-input-tokens", "--max-total-tokens"]),
        (["--memory-fraction", "2"], ["--memory-fraction"]),
        (["nobody/nothing"], ["nobody/nothing", "cache"]),
        (["nothing"], ["model nothing: no such directory; as a Hub id: not in the cache"]),
    ],
)
def test_a_broken_setting(arguments: list[str], names: list[str]) -> None:
    """The line names the flag, and the value."""
    failed(run("serve", "--hostname", "127.0.0.1", "--port", "0", *arguments), names)


def test_the_port_is_in_use() -> None:
    """Found before any weight is read; the line names the flag."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        failed(run("serve", "--hostname", "127.0.0.1", "--port", port), [f"--port {port}", "in use"])


NO_LOW_PORTS = ("setpriv", "--bounding-set=-net_bind_service") if os.geteuid() == 0 else ()
"""Takes the right to low ports from root; other users have none."""
FULL_DISK = ("prlimit", "--fsize=0:0")
"""No file may grow, as where every disk is full; pipes are none."""


@pytest.mark.parametrize("command", [["serve", "--hostname", "127.0.0.1", "--port", "7"], ["shard", "--listen", "127.0.0.1:7"]])
def test_the_port_is_for_root(command: list[str]) -> None:
    """A port below 1024 without the right to it: one line with flag and number."""
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 7:
        pytest.skip("here every user may listen on every port")
    result = run(*command, "--backend", "reference", "--shard-without-token", tgi=(*NO_LOW_PORTS, *TGI))
    failed(result, ["7", "cannot listen"])
    assert command[0] != "serve" or "--port 7: cannot listen: Permission denied" in result.stderr


@pytest.mark.parametrize("command", [["serve", "--hostname", "127.0.0.1", "--port", "0"], ["shard"]])
def test_no_temporary_folder(command: list[str]) -> None:
    """Where nothing can be written, not in the temporary folder either, the line says what to set."""
    result = run(*command, "--backend", "reference", tgi=(*FULL_DISK, *TGI))
    failed(result, ["cannot create a temporary directory", "TMPDIR"])
    assert len([line for line in result.stderr.splitlines() if "error" in line]) == 1, result.stderr


def test_the_output_cannot_be_written() -> None:
    """`tgi config show > /dev/full`: one line, exit status 1."""
    with Path("/dev/full").open("w") as full:
        command = [*TGI, "config", "show"]
        result = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, env=environment(), check=False
        )
    failed(result, ["No space left on device"])
    assert len(result.stderr.splitlines()) == 1


def test_a_typing_error_is_shown_with_its_flag() -> None:
    """click's own usage errors keep exit status 2 and name the flag."""
    result = run("serve", "--port", "many")
    assert result.returncode == 2 and "--port" in result.stderr and "Traceback" not in result.stderr


PLUGIN = """
from tgi_core.backend import Manifest, Probe, ProbeStatus, hookimpl

@hookimpl
def backend_manifest():
    return Manifest("{name}", "test", "1.0", (1, 0), (1, 0), "{name}")

@hookimpl
def backend_probe():
    return Probe(ProbeStatus.{status}, reason="{reason}")

@hookimpl
def backend_open(options):
    raise NotImplementedError
"""


def install(directory: Path, name: str, status: str, reason: str = "") -> None:
    """A backend package on the path, with an entry point of its own."""
    (directory / f"fake_{name}.py").write_text(PLUGIN.format(name=name, status=status, reason=reason))
    metadata = directory / f"fake_{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fake-{name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[tgi.backends]\n{name} = fake_{name}\n")


def test_two_accelerators(tmp_path: Path) -> None:
    """Two that are ready: the user chooses, we do not guess."""
    install(tmp_path, "alpha", "READY")
    install(tmp_path, "beta", "READY")
    result = run("serve", "--hostname", "127.0.0.1", "--port", "0", extra={"PYTHONPATH": str(tmp_path)})
    failed(result, ["alpha", "beta", "--backend"])


def test_a_broken_accelerator_is_not_passed_over(tmp_path: Path) -> None:
    """The CPU is not chosen in silence while an accelerator is broken; the reason is in the line and in the table."""
    install(tmp_path, "alpha", "BROKEN", "its driver is too old")
    extra = {"PYTHONPATH": str(tmp_path)}
    failed(run("serve", "--hostname", "127.0.0.1", "--port", "0", extra=extra), ["alpha", "its driver is too old"])
    table = run("backends", extra=extra).stdout
    assert "alpha fake-alpha 1.0 1.0 broken - no its driver is too old" in [" ".join(line.split()) for line in table.splitlines()]


def test_a_backend_that_fails_to_open(tmp_path: Path) -> None:
    """Its foreign exception is one line with the backend's name."""
    install(tmp_path, "alpha", "READY")
    result = run("serve", "--backend", "alpha", "--hostname", "127.0.0.1", "--port", "0", extra={"PYTHONPATH": str(tmp_path)})
    failed(result, ["backend alpha failed to open", "NotImplementedError"])
