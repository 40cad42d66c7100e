"""The plugin's own tier, and what it gives to the engine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from tgi_backend_cpu import plugin
from tgi_backend_cpu.kit import CpuKit
from tgi_backend_cpu.limits import MemoryLimit

from tgi_core.backend import API_VERSION, ProbeStatus, Unsupported
from tgi_core.engine.models.linear import KernelLinear
from tgi_core.engine.quantization.weight import Dense


def test_manifest_and_probe() -> None:
    """It names itself, fits this core, and finds a CPU on every machine."""
    manifest, probe = plugin.backend_manifest(), plugin.backend_probe()
    assert manifest.name == manifest.device_kind == "cpu" and manifest.api_requires <= API_VERSION
    assert probe.status is ProbeStatus.READY and "threads" in probe.devices[0]


def test_import_and_probe_without_torch() -> None:
    """Importing and probing load neither torch nor transformers."""
    code = (
        "import sys; from tgi_backend_cpu import plugin; plugin.backend_manifest(); plugin.backend_probe();"
        "sys.exit(bool({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def test_missing_package_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch the plugin is BROKEN, with a reason and what to do."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else object())
    probe = plugin.backend_probe()
    assert probe.status is ProbeStatus.BROKEN and "torch" in probe.reason and "pip install" in probe.hint


@pytest.mark.parametrize(
    ("asked", "stored", "chosen"),
    [
        ("auto", torch.float32, torch.float32),
        ("auto", torch.bfloat16, torch.bfloat16),
        ("auto", torch.float16, torch.bfloat16),
        ("float32", torch.bfloat16, torch.float32),
        ("float16", torch.float32, torch.bfloat16),
    ],
)
def test_dtype(asked: str, stored: torch.dtype, chosen: torch.dtype) -> None:
    """The config's dtype where the CPU computes it; float16 is run as bfloat16."""
    assert CpuKit(torch.get_num_threads(), 0.9).choose_dtype(asked, stored) is chosen


def test_unknown_dtype_is_refused() -> None:
    """A dtype that the CPU does not run is named."""
    with pytest.raises(Unsupported, match="int3"):
        CpuKit(torch.get_num_threads(), 0.9).choose_dtype("int3", torch.float32)


@pytest.mark.parametrize("kernels", ["torch", "auto"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 7, 33])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(dtype: torch.dtype, tokens: int, bias: bool, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every provider that serves a weight computes what `F.linear` does, to the dtype's rounding."""
    monkeypatch.setenv("TGI_CPU_KERNELS", kernels)
    generator = torch.Generator().manual_seed(0)
    weight, input = (torch.randn(shape, generator=generator).to(dtype) for shape in ((80, 48), (1, tokens, 48)))
    offset = torch.randn(80, generator=generator).to(dtype) if bias else None
    served = 0
    for provider in CpuKit(torch.get_num_threads(), 0.9).linears():
        if provider.probe() or provider.refusal(Dense.of(weight)) or provider.self_check(Dense.of(weight)):
            continue
        served += 1
        with torch.inference_mode():
            found = provider.load(Dense.of(weight), offset)(input)
            wanted = F.linear(input.float(), weight.float(), None if offset is None else offset.float())
        assert found.dtype is dtype and found.shape == (1, tokens, 80)
        assert torch.allclose(
            found.float(), wanted, rtol=1e-5 if dtype is torch.float32 else 2e-2, atol=1e-4 if dtype is torch.float32 else 0.1
        )
    assert served


def test_absent_weight_cannot_be_computed_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a packed layer's weight gives its dtype and shape; computing with it gives NaN, never something plausible."""
    monkeypatch.setenv("TGI_CPU_KERNELS", "torch")
    for kernel in CpuKit(torch.get_num_threads(), 0.9).linears()[1:]:
        weight = Dense.of(torch.ones(4, 8))
        linear = kernel.load(weight, None)
        layer = KernelLinear(linear, weight, None)
        assert layer.weight.shape == (4, 8) and layer.weight.dtype is torch.float32
        assert F.linear(torch.ones(1, 8), layer.weight).isnan().all() == (linear.dense is None)


@pytest.mark.parametrize(("asked", "threads"), [("3", 3), ("4,2", 4), ("", None), ("many", None), ("0", None)])
def test_threads(asked: str, threads: int | None) -> None:
    """The operator's OMP_NUM_THREADS wins; what is no number leaves the choice to us."""
    assert plugin.thread_count({"OMP_NUM_THREADS": asked}) == (threads or plugin.cpu_count())


def test_ranks_of_one_machine_divide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two ranks has half of the cores, at least one, and may take half of the memory; a thread count that is asked for is each
    rank's."""
    monkeypatch.setattr(plugin, "cpu_count", lambda: 8)
    assert plugin.thread_count({}, 2) == 4 and plugin.thread_count({}, 16) == 1
    assert plugin.thread_count({"OMP_NUM_THREADS": "3"}, 2) == 3
    monkeypatch.setattr("tgi_backend_cpu.kit.memory_limit", lambda: MemoryLimit(1000, 900))
    whole, half = (CpuKit(torch.get_num_threads(), 0.9, ranks).free_bytes() for ranks in (1, 2))
    assert half == whole // 2 > 0
