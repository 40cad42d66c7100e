"""`neuron-native` over a stand-in of TorchNeuron: few programs, none of which is compiled in traffic, and errors of its compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tgi_backend_neuron import discovery, native_plugin
from tgi_backend_neuron.native import NativeKit, NeuronRules
from torch import Tensor

from tests.engine.static.test_compiling import Traffic
from tests.engine.tiny_models import save_tiny, silent
from tests.neuron.standin import NATIVE, PACKAGES, make_machine, make_packages
from tgi_core.backend import (
    CacheGroup,
    CacheKind,
    Capacity,
    CompileFailed,
    DeviceBusy,
    DeviceLost,
    Feature,
    InvalidModel,
    OpenOptions,
    Unsupported,
    WarmupPlan,
)
from tgi_core.backend.session import Session
from tgi_core.engine.static.buckets import Buckets


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Trn2 instance with TorchNeuron."""
    discovery.check_free.cache_clear()
    monkeypatch.setattr(discovery, "ROOT", make_machine(tmp_path / "machine", "trn2.stand-in"))
    monkeypatch.syspath_prepend(str(PACKAGES))
    monkeypatch.syspath_prepend(str(make_packages(tmp_path / "site", NATIVE)))
    monkeypatch.delenv("NEURON_RT_VISIBLE_CORES", raising=False)


def runtime() -> Any:
    """The stand-in's `torch.neuron`."""
    import torch_neuronx

    return torch_neuronx.neuron


@pytest.mark.parametrize(("positions", "most"), [(4096, 24), (32768, 40)])
def test_few_programs(positions: int, most: int) -> None:
    """Each takes minutes to compile."""
    blocks = 32 * positions // 128
    capacity = Capacity((CacheGroup(CacheKind.FULL, 128, blocks),), 32, positions, 1056, 32)
    buckets = Buckets.of(capacity, NativeKit.rules)
    assert isinstance(NativeKit.rules, NeuronRules) and len(buckets.shapes()) <= most, str(buckets)


def test_nothing_is_compiled_in_traffic(llama: Path) -> None:
    """Over random steps the compiler's own counter stands still."""
    session = Session(native_plugin.backend_open(OpenOptions(str(llama), "float32"), silent), "neuron-native")
    plan = WarmupPlan(max_rows=2, max_row_tokens=48, max_step_tokens=48, num_blocks=4, block_size=32)
    capacity = session.warmup(plan, silent)
    compiled = len(runtime().get_dynamo_metrics())
    assert 0 < session.stats().compiles == capacity.compiles and capacity.in_flight == 1
    assert session.capabilities().features >= {Feature.CHUNKED_PREFILL, Feature.PREFIX_REUSE, Feature.PROMPT_LOGPROBS}
    traffic = Traffic(session, capacity, 2)
    for _ in range(60):
        traffic.step()
    assert len(runtime().get_dynamo_metrics()) == compiled and session.stats().compiles == capacity.compiles


def doubled(numbers: Tensor) -> Tensor:
    """A program."""
    return numbers * 2


def test_the_compiler() -> None:
    """A program is compiled once; after warm-up another shape is an error that names it, and so is what cannot be compiled."""
    compiler = NativeKit(0, 0.9).program_compiler({"test": "the compiler"}, None)
    program = compiler.compile(doubled, "twice")
    assert program(torch.ones(3)).tolist() == [2.0] * 3 and compiler.compiles() == 1
    with pytest.raises(CompileFailed, match="float64, which is not supported"):
        compiler.compile(lambda numbers: numbers.double(), "wide")(torch.ones(2))
    compiler.seal()
    assert program(torch.ones(3)).tolist() == [2.0] * 3
    with pytest.raises(CompileFailed, match="twice: cannot be compiled"):
        program(torch.ones(4))
    assert compiler.compiles() == 1


@pytest.mark.parametrize(("text", "raised"), [("NRT_EXEC_HW_ERR_NC_UE", DeviceLost), ("shapes differ", RuntimeError)])
def test_a_device_that_fails(text: str, raised: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the device failed with comes when it is waited for, as the contract's error; others stay what they are."""

    def fail() -> None:
        raise RuntimeError(text)

    queue = NativeKit(0, 0.9).queue()
    monkeypatch.setattr(runtime(), "synchronize", fail)
    with pytest.raises(raised, match=text):
        queue.record().wait()


def test_cores_that_are_taken(tmp_path: Path, llama: Path) -> None:
    """All by another process: the line says so, and how to find it."""
    make_machine(tmp_path / "machine", "trn2.stand-in", busy=tuple(range(8)))
    with pytest.raises(DeviceBusy, match="1 Neuron cores are needed, and of 4 another process holds 0, 1, 2, 3; neuron-ls"):
        native_plugin.backend_open(OpenOptions(str(llama)), silent)


def test_more_ranks_than_cores() -> None:
    """Named with both numbers."""
    with pytest.raises(Unsupported, match="rank 4 of this machine needs its own core, but only 4 can be used"):
        NativeKit(4, 0.9)


def test_compile_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime's own cache is in the operator's directory, and a graph that fails to compile is an error; a model that is no table is
    refused."""
    for name in ("TORCH_NEURONX_NEFF_CACHE_DIR", "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    model = save_tiny("gpt2", tmp_path / "model")
    with pytest.raises(InvalidModel, match="static devices run decoder tables"):
        native_plugin.backend_open(OpenOptions(str(model), "float32", compile_cache=str(tmp_path / "cache")), silent)
    assert native_plugin.os.environ["TORCH_NEURONX_NEFF_CACHE_DIR"] == str(tmp_path / "cache" / "neff")
    assert native_plugin.os.environ["TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION"] == "1"
