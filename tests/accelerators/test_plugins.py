"""The packages as the core and the conformance suite see them, on a machine without an accelerator."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from tgi_backend_cuda.discovery import probe as probe_cuda
from tgi_backend_cuda.plugin import allocator_variable
from tgi_backend_cuda.plugin import defaults as cuda_defaults
from tgi_backend_rocm.plugin import DEFAULTS as ROCM_DEFAULTS
from tgi_backend_xpu.discovery import probe as probe_xpu

from tests.accelerators.machines import KINDS, install_torch, intel, nvidia
from tgi_core.backend import API_VERSION, DeviceLost, OpenOptions, Probe, ProbeStatus
from tgi_core.backend.registry import Plugin, find, select
from tgi_core.cli.backends import command as backends
from tgi_core.engine.accelerator.torch_build import torch_build
from tgi_core.errors import StartupError

ROOT = Path(__file__).resolve().parents[2]
VENDORS = (
    "aiter",
    "flash_attn",
    "flash_attn_interface",
    "flashinfer",
    "habana_frameworks",
    "intel_extension_for_pytorch",
    "pynvml",
    "vllm_xpu_kernels",
)
SUITE = str(Path(sys.executable).with_name("tgi-conformance"))
DEMO = ROOT / "tgi_core/demo"


def quiet(what: str, done: int, total: int, unit: str) -> None:
    """Progress that nobody watches."""


@pytest.mark.parametrize("kind", KINDS)
def test_everything_imports_without_a_vendor(kind: str) -> None:
    """With every vendor library blocked, plugin and probe import and answer without torch, and all other modules import with it."""
    modules = sorted(
        ".".join(file.relative_to(ROOT / "backends" / kind).with_suffix("").parts)
        for file in (ROOT / "backends" / kind).rglob("*.py")
        if file.stem != "__init__"
    )
    code = (
        f"import importlib, sys; sys.modules.update(dict.fromkeys({VENDORS!r}));"
        f"from tgi_backend_{kind} import plugin; assert plugin.backend_probe().status.value == 'absent';"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules);"
        f"[importlib.import_module(name) for name in {modules!r}]"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_what_they_say(kind: str) -> None:
    """Each names itself, fits this core, and is ABSENT here with a reason and a hint; nothing is verified that was not measured."""
    plugin = find(kind)
    assert plugin.manifest is not None and plugin.manifest.device_kind == kind and plugin.manifest.api_requires <= API_VERSION
    found: Probe = plugin.hooks.backend_probe()
    assert found.status is ProbeStatus.ABSENT and found.reason and found.hint and not found.verified_on_hardware


def test_the_table_of_backends() -> None:
    """`tgi backends` lists them with what they found."""
    lines = CliRunner().invoke(backends).output.splitlines()
    for kind in KINDS:
        (line,) = (line for line in lines if line.startswith(f"{kind} "))
        assert f"tgi-backend-{kind}" in line and " absent " in line


@pytest.mark.parametrize("kind", KINDS)
def test_opening_says_what_probing_says(kind: str) -> None:
    """A backend that was named and has no device fails with the probe's reason, before torch or a model is loaded."""
    plugin = find(kind)
    with pytest.raises(DeviceLost, match=re.escape(plugin.hooks.backend_probe().reason)):
        plugin.open(OpenOptions(str(DEMO)), quiet)


@pytest.mark.parametrize("kind", KINDS)
def test_conformance_of_the_package(kind: str, tmp_path: Path) -> None:
    """Level 0, all that can be said without the device, is granted."""
    command = [SUITE, "run", "--backend", kind, "--level", "L0"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0 and "L0  granted" in done.stdout, done.stdout + done.stderr


def probed(tmp_path: Path) -> list[tuple[Plugin, Probe]]:
    """The real plugins on a machine with an Intel GPU; the CPU is ready."""
    cpu = find("cpu")
    return [
        (cpu, Probe(ProbeStatus.READY, ("some processor",))),
        (find("cuda"), probe_cuda(tmp_path, {})),
        (find("xpu"), probe_xpu(intel(tmp_path, "0000:03:00.0"), {})),
    ]


def test_the_cpu_is_no_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU beside a torch that cannot use it ends the start, with what to repair; the CPU is not taken instead."""
    install_torch(tmp_path, monkeypatch)
    with pytest.raises(
        StartupError, match=r"an accelerator backend is broken \(xpu: Intel GPU e20b was found, but torch 2.13.0 is not a"
    ):
        select(probed(tmp_path))


def test_the_accelerator_that_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the right torch it is chosen, and with two of them nobody guesses."""
    install_torch(tmp_path, monkeypatch, xpu="20260000", cuda="13.0")
    found = probed(tmp_path)
    assert select(found).name == "xpu"
    cards = (importlib.import_module("tgi_backend_cuda.nvml").Card("NVIDIA H200", "GPU-1", (9, 0), 2**37),)
    found[1] = (found[1][0], probe_cuda(nvidia(tmp_path), {}, lambda: (cards, (13, 0))))
    with pytest.raises(StartupError, match="several accelerators are ready: cuda, xpu"):
        select(found)


@pytest.mark.parametrize("kind", KINDS)
def test_what_pip_would_install(kind: str) -> None:
    """What a package needs can be had from the public index, and is the real thing: no vendor's library, none of the names that are
    held there by something else. torch is only required where the index has the right build."""
    project = tomllib.loads((ROOT / "backends" / kind / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[\[<>= ]", line)[0] for line in project["dependencies"]}
    assert names <= {"tgi-core", "numpy", "safetensors", "transformers"}
    assert ("tgi-core[engine]" in project["dependencies"]) is (kind == "cuda")
    extras = {re.split(r"[\[<>=; ]", line)[0] for lines in project.get("optional-dependencies", {}).values() for line in lines}
    assert not extras & {"aiter", "habana-torch-plugin", "intel-extension-for-pytorch", "pytorch-triton-xpu", "triton-xpu"}
    assert project["entry-points"]["tgi.backends"] == {kind: f"tgi_backend_{kind}.plugin"}


def test_the_allocator_s_segments_grow_unless_the_operator_says_otherwise() -> None:
    """The variable has the name that the torch at hand knows; an operator who sets either keeps what is set."""
    assert cuda_defaults({})[allocator_variable(torch_build()["__version__"])] == "expandable_segments:True"
    assert allocator_variable("2.8.0+cu128") == "PYTORCH_CUDA_ALLOC_CONF"
    assert allocator_variable("2.9.1") == allocator_variable("2.13.0+cpu") == "PYTORCH_ALLOC_CONF"
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        assert not any("ALLOC" in key for key in cuda_defaults({name: ""}))


@pytest.mark.parametrize("defaults", [cuda_defaults({}), ROCM_DEFAULTS], ids=["cuda", "rocm"])
def test_torch_s_watchdog_does_not_end_the_process(defaults: dict[str, str]) -> None:
    """A collective that times out is given up (2) without tearing the process down, which 1 and torch's default 3 do."""
    assert defaults["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "2"
    assert defaults["TORCH_NCCL_ENABLE_MONITORING"] == defaults["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "0"
