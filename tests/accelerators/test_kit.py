"""What the packages' kits say of a device: memory, dtypes, switches, errors."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from tgi_backend_cuda.kit import CudaKit, no_code
from tgi_backend_rocm.kit import RocmKit
from tgi_backend_xpu.kit import XpuKit
from torch import Tensor

from tests.accelerators.runtimes import FakeRuntime, graphs_of
from tgi_core.backend import BackendError, DeviceLost, Kernel, Memory, OutOfMemory, PeerLost, Unsupported, WarmupPlan
from tgi_core.engine.accelerator.failures import FailureTexts, device_failure
from tgi_core.engine.accelerator.kit import AcceleratorKit
from tgi_core.engine.accelerator.queue import NewGraph
from tgi_core.engine.ahead.sampler_check import sampler_disagreement
from tgi_core.engine.ahead.sampling import TorchSampler
from tgi_core.engine.attention.cache import KVCacheDtype, LayerShape
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.attention.torch_sdpa import TorchAttention
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.paged_runner import PagedRunner
from tgi_core.engine.row_filters import RowFilters
from tgi_core.engine.triton import probing
from tgi_core.engine.triton.tiles import TileTable


class SomeKit(AcceleratorKit):
    """A kit of no vendor."""

    name = "some"
    device_type = "meta"
    collectives = "gloo"

    def providers(self) -> Sequence[AttentionProvider]:
        """Plain torch."""
        return (TorchAttention(),)

    def graph(self) -> NewGraph | str:
        """Captured."""
        assert isinstance(self.runtime, FakeRuntime)
        return graphs_of(self.runtime)


def test_memory() -> None:
    """A cache may take what the driver has free once torch has given back what it keeps for nobody, less the operator's share."""
    runtime = FakeRuntime(used=30 * 10**9)
    kit = SomeKit(0, 0.9, runtime)
    runtime.take(5 * 10**9)
    runtime.cached = 20 * 10**9
    assert kit.free_bytes() == 55 * 10**9
    assert SomeKit(0, 1.0, runtime).free_bytes() == 65 * 10**9 - 2**28  # the driver takes some later
    runtime.used = 99 * 10**9
    assert kit.free_bytes() == 0


def test_a_rank_takes_its_own_device() -> None:
    """Rank 1 of a machine makes device 1 current; a rank beyond the last device is told how many there are."""
    runtime = FakeRuntime(count=2)
    assert SomeKit(1, 0.9, runtime).device.index == 1 and runtime.log == ["set meta:1"]
    with pytest.raises(Unsupported, match="rank 2 of this machine needs its own device, but only 2 can be used"):
        SomeKit(2, 0.9, runtime)


@pytest.mark.parametrize(
    ("asked", "stored", "bfloat16", "chosen"),
    [
        ("auto", torch.bfloat16, True, torch.bfloat16),
        ("auto", torch.float32, True, torch.float32),
        ("auto", torch.bfloat16, False, torch.float16),
        ("half", torch.bfloat16, True, torch.float16),
        ("float32", torch.bfloat16, True, torch.float32),
    ],
)
def test_dtypes(asked: str, stored: torch.dtype, bfloat16: bool, chosen: torch.dtype) -> None:
    """The dtype asked for, or the model's own; float16 where the device lacks bfloat16 and nobody insists."""
    assert SomeKit(0, 0.9, FakeRuntime(bfloat16=bfloat16)).choose_dtype(asked, stored) is chosen


@pytest.mark.parametrize(
    ("asked", "stored", "said"), [("bfloat16", torch.float32, "use float16"), ("int3", torch.float32, "int3")]
)
def test_dtypes_refused(asked: str, stored: torch.dtype, said: str) -> None:
    """One that the device does not compute is refused with what it does."""
    with pytest.raises(Unsupported, match=said):
        SomeKit(0, 0.9, FakeRuntime(bfloat16=False)).choose_dtype(asked, stored)


def test_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator may turn graphs and running ahead off, each by itself; what is in force is told with the reason."""
    kit = SomeKit(0, 0.9, FakeRuntime())
    assert kit.queue().in_flight == 2 and not isinstance(kit.queue().graphs(), str)
    assert kit.choices()[0] == Kernel("device", "Device 0")
    unverified = "no report of the conformance suite on a device is in tgi_backend_some"
    assert Kernel("verified_on_hardware", "false", unverified) in kit.choices()
    monkeypatch.setenv("TGI_SOME_GRAPHS", "off")
    monkeypatch.setenv("TGI_SOME_RUN_AHEAD", "0")
    assert kit.queue().in_flight == 1 and kit.queue().graphs() == "TGI_SOME_GRAPHS=off"
    assert kit.choices()[1:3] == (Kernel("switch", "TGI_SOME_GRAPHS=off"), Kernel("switch", "TGI_SOME_RUN_AHEAD=off"))


def test_sums_of_small_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator sets up to which size ranks sum over symmetric memory, or 0 for none; anything else is refused."""
    kit = SomeKit(0, 0.9, FakeRuntime())
    assert (kit.all_reduce().most_bytes, kit.all_reduce().reason) == (256 << 10, "")
    monkeypatch.setenv("TGI_SOME_ONE_SHOT_KIB", "64")
    assert (kit.all_reduce().most_bytes, kit.all_reduce().reason) == (64 << 10, "")
    monkeypatch.setenv("TGI_SOME_ONE_SHOT_KIB", "0")
    assert kit.all_reduce().reason == "TGI_SOME_ONE_SHOT_KIB=0"
    for wrong in ("-1", "1.5", "off", "99999999", "²"):
        monkeypatch.setenv("TGI_SOME_ONE_SHOT_KIB", wrong)
        with pytest.raises(Unsupported, match="TGI_SOME_ONE_SHOT_KIB"):
            kit.all_reduce()


def test_rounded_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs of 8-bit weights are rounded only where an operator says so; it is told, and TGI_OPERATORS=torch goes first."""
    kit = SomeKit(0, 0.9, FakeRuntime())
    assert [provider.name for provider in kit.linears()] == ["triton", "torch"]
    monkeypatch.setenv("TGI_SOME_W8A8", "1")
    assert [provider.name for provider in kit.linears()] == ["scaled-mm", "triton-w8a8", "triton", "torch"]
    assert Kernel("switch", "TGI_SOME_W8A8=1") in kit.choices()
    monkeypatch.setenv("TGI_OPERATORS", "torch")
    assert [provider.name for provider in kit.linears()] == ["torch"]


def test_only_torch_s_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """TGI_OPERATORS=torch switches the fused operators and the fused sampler off, and is shown; another value is refused."""
    kit = SomeKit(0, 0.9, FakeRuntime())
    monkeypatch.setenv("TGI_OPERATORS", "torch")
    assert kit.queue().sampler().name == "torch"
    assert Kernel("switch", "TGI_OPERATORS=torch") in kit.choices()
    monkeypatch.setenv("TGI_OPERATORS", "tritn")
    with pytest.raises(Unsupported, match="TGI_OPERATORS='tritn': set it to torch"):
        kit.queue()


def test_a_sampler_that_fails_its_self_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler whose kernels fail is passed over with the reason, and torch's samples."""
    pytest.importorskip("triton")
    monkeypatch.setattr("tgi_core.engine.triton.probing.probe", lambda: "")
    kit = SomeKit(0, 0.9, FakeRuntime())  # a meta device, on which no kernel runs
    assert kit.queue().sampler().name == "torch"
    (told,) = [kernel for kernel in kit.choices() if kernel.part == "sampler"]
    assert told.name == "torch" and told.reason.startswith("not triton: ")


def test_processing_that_fails_its_self_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only the kernels for processed logits fail, those rows are left to the host, and the reason is told."""
    pytest.importorskip("triton")
    monkeypatch.setattr("tgi_core.engine.triton.probing.probe", lambda: "")
    monkeypatch.setattr("tgi_core.engine.accelerator.kit.sampler_disagreement", lambda sampler, device: "")
    kit = SomeKit(0, 0.9, FakeRuntime())
    sampler = kit.queue().sampler()
    assert sampler.name == "triton" and not sampler.processes
    (told,) = [kernel for kernel in kit.choices() if kernel.part == "processed rows"]
    assert told.name == "host" and told.reason


@pytest.mark.parametrize("wrong", ["", "argmax", "draw", "logprob", "nan", "filters"])
def test_the_sampler_s_check_finds_what_is_wrong(wrong: str) -> None:
    """Wrong tokens of greedy and of drawn rows, wrong logprobs, rows of NaN that get a token, and filters that filter nothing."""

    class Sampler(TorchSampler):
        filters = wrong == "filters"

        def choose(
            self, logits: Tensor, temperatures: Tensor | None, uniforms: Tensor, filters: RowFilters | None = None
        ) -> tuple[Tensor, Tensor]:
            tokens, logprobs = super().choose(logits, temperatures, uniforms)
            draws = torch.zeros(len(tokens), dtype=torch.bool) if temperatures is None else temperatures > 0
            if wrong in ("argmax", "draw"):
                tokens = torch.where((draws if wrong == "draw" else ~draws) & (tokens >= 0), (tokens + 1) % 70_001, tokens)
            return tokens.clamp_min(0) if wrong == "nan" else tokens, logprobs + 0.01 * (wrong == "logprob")

    found = sampler_disagreement(Sampler(), torch.device("cpu"))
    assert (
        bool(found) == bool(wrong)
        and ("logprobs" in found) == (wrong == "logprob")
        and ("filters" in found) == (wrong == "filters")
    )


class DriverFailure:
    """A driver of Triton that fails when it is asked."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    @property
    def active(self) -> object:
        """Compiles the driver's module on first use."""
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        subprocess.CalledProcessError(1, ["gcc"], stderr="Python.h: No such file or directory"),
        AssertionError("libcuda.so cannot found!"),
        RuntimeError("0 active drivers ([])"),
        OSError("no driver"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_driver_that_fails_is_a_reason(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """However Triton's driver fails, the probe says why kernels cannot run, in one line, and raises nothing."""
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(triton.runtime, "driver", DriverFailure(error))
    reason = probing.probe()
    assert reason.startswith("triton compiles for no device here: ") and type(error).__name__ in reason and "\n" not in reason


def test_attention_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator may name the providers to try, in order; a name that is none is refused with those that are."""
    kit = SomeKit(0, 0.9, FakeRuntime())
    monkeypatch.setenv("TGI_SOME_ATTENTION", "torch")
    assert [provider.name for provider in kit.attention()] == ["torch"]
    monkeypatch.setenv("TGI_SOME_ATTENTION", "torch, paged")
    with pytest.raises(Unsupported, match="TGI_SOME_ATTENTION: no 'paged'; there are: torch"):
        kit.attention()


@pytest.mark.parametrize(
    ("kit", "error", "becomes"),
    [
        (CudaKit, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), OutOfMemory),
        (CudaKit, RuntimeError("CUDA error: an illegal memory access was encountered"), DeviceLost),
        (CudaKit, RuntimeError("CUDA error: uncorrectable ECC error encountered"), DeviceLost),
        (CudaKit, RuntimeError("CUDA error: unspecified launch failure"), DeviceLost),
        (CudaKit, RuntimeError("CUDA error: device-side assert triggered"), DeviceLost),
        (CudaKit, torch.AcceleratorError("CUDA error: something new"), DeviceLost),
        (CudaKit, RuntimeError("CUDA error: no kernel image is available for execution on the device"), Unsupported),
        (CudaKit, RuntimeError("NCCL Error 6: remote process exited or there was a network error"), PeerLost),
        (CudaKit, torch.distributed.DistBackendError("connection reset by peer"), PeerLost),
        (RocmKit, RuntimeError("HIP out of memory. Tried to allocate 2 GiB"), OutOfMemory),
        (RocmKit, RuntimeError("HIP error: hipErrorECCNotCorrectable"), DeviceLost),
        (RocmKit, RuntimeError("HIP error: hipErrorIllegalAddress"), DeviceLost),
        (XpuKit, RuntimeError("UR error: UR_RESULT_ERROR_DEVICE_LOST"), DeviceLost),
        (XpuKit, RuntimeError("level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)"), DeviceLost),
        (XpuKit, RuntimeError("oneCCL: ze_call error"), PeerLost),
    ],
)
def test_errors_of_a_device(kit: type[AcceleratorKit], error: Exception, becomes: type[BackendError]) -> None:
    """What torch raises for a device becomes the contract's error, with the vendor's own words in it."""
    found = device_failure(error, kit.failures)
    assert type(found) is becomes and str(error)[:20] in str(found)


@pytest.mark.parametrize("error", [RuntimeError("shape '[2]' is invalid for input of size 3"), TypeError("no"), KeyError("ecc")])
def test_errors_of_ours(error: Exception) -> None:
    """An error that says nothing of the device is not called one of its own."""
    assert device_failure(error, FailureTexts()) is None


@pytest.mark.parametrize(
    ("capability", "built", "runs"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((8, 9), ["sm_80", "sm_86"], True),
        ((12, 0), ["sm_90", "sm_100"], False),
        ((12, 0), ["sm_90", "compute_90"], True),
        ((9, 0), ["sm_90a"], True),
        ((7, 5), ["sm_80"], False),
        ((9, 0), [], False),
    ],
)
def test_torch_with_code_for_the_device(capability: tuple[int, int], built: list[str], runs: bool) -> None:
    """A device that torch has no code for is refused when the model is opened, by its architecture, not at the first kernel."""
    assert (no_code(capability, built) == "") is runs


@pytest.mark.parametrize(("kit", "said"), [(RocmKit, "not a build for ROCm"), (XpuKit, "not a build for Intel GPUs")])
def test_kits_of_another_torch(kit: type[AcceleratorKit], said: str) -> None:
    """torch calls AMD's devices by another vendor's name: the build is what tells, and the kit asks it."""
    with pytest.raises(Unsupported, match=said):
        kit(0, 0.9, FakeRuntime())


def test_devices_that_cannot_capture() -> None:
    """Graphs stay off on AMD's desktop devices and on Intel's, with the reason; on AMD's data-centre devices they are on."""
    rocm, xpu = RocmKit.__new__(RocmKit), XpuKit.__new__(XpuKit)
    rocm.architecture = "gfx1100"
    assert "crash on gfx1100" in str(rocm.graph()) and "experimental" in str(xpu.graph())
    rocm.architecture = "gfx942"
    assert not isinstance(rocm.graph(), str)


def test_the_kits_of_real_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H200, an MI300X and an Arc, as torch describes them: attention providers in order, and what the device is refused for."""
    properties = SimpleNamespace(multi_processor_count=132, gcnArchName="gfx942:sramecc+", gpu_eu_count=160, has_fp64=False)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: properties)
    monkeypatch.setattr("torch.xpu.get_device_properties", lambda device: properties)
    monkeypatch.setattr("torch.cuda.get_arch_list", lambda: ["sm_80", "sm_90"])
    monkeypatch.setattr("torch.version.hip", "7.2")
    monkeypatch.setattr("torch.version.xpu", "20260000")
    cuda, rocm, xpu = (kit(0, 0.9, FakeRuntime()) for kit in (CudaKit, RocmKit, XpuKit))
    names = [[provider.name for provider in kit.attention()] for kit in (cuda, rocm, xpu)]
    assert names[0] == ["flash-attn 3", "triton", "flashinfer", "flash-attn 2", "torch varlen", "torch"]
    assert names[1:] == [["aiter", "triton", "torch"], ["vllm-xpu-kernels", "ipex", "triton", "torch"]]
    assert cuda.graph() is torch.cuda.CUDAGraph and xpu.precision is torch.float32
    monkeypatch.setattr("torch.cuda.get_arch_list", lambda: ["sm_100"])
    with pytest.raises(Unsupported, match=r"Device 0: compute capability 9.0, for which torch .* has no code \(sm_100\)"):
        CudaKit(0, 0.9, FakeRuntime())


def test_a_device_without_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that our kernels have no tiles for is told beside what is used instead."""
    kit = SomeKit(0, 0.9, FakeRuntime())
    assert kit.triton(100) == () and kit.choices()[-1] == Kernel("tiles", "none", "no tiles for Device 0")


class Fp8Kit(SomeKit):
    """A kit of a chip that reads numbers of 8 bits."""

    variant = "fp8e4nv"

    def tiles(self) -> TileTable:
        """No tile, but the numbers."""
        return TileTable("some", 1, (), self.variant)


@pytest.mark.parametrize(("variant", "dtype"), [("fp8e4nv", torch.float8_e4m3fn), ("fp8e4b8", torch.float8_e4m3fnuz)])
def test_cache_of_8_bits(variant: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache has the chip's own variant of the numbers that are asked for."""
    monkeypatch.setattr(Fp8Kit, "variant", variant)
    kit = Fp8Kit(0, 0.9, FakeRuntime())
    assert kit.with_cache("auto").kv_cache_dtype is None
    assert kit.with_cache("float8_e4m3fn").kv_cache_dtype == KVCacheDtype("float8_e4m3fn", dtype)


@pytest.mark.parametrize(
    ("kit", "asked", "said"),
    [
        (SomeKit, "float8_e4m3fn", "Device 0 does not support a cache in float8_e4m3fn; leave it out"),
        (Fp8Kit, "float8_e5m2", "Device 0 does not support a cache in float8_e5m2; it supports float8_e4m3fn"),
    ],
)
def test_cache_of_8_bits_refused(kit: type[SomeKit], asked: str, said: str) -> None:
    """Numbers that a chip does not read are refused, with those that it does."""
    with pytest.raises(Unsupported, match=said):
        kit(0, 0.9, FakeRuntime()).with_cache(asked)


def test_the_cache_leaves_room_for_what_its_tensors_take_beside_blocks() -> None:
    """At a memory fraction of 1 the null block, the block for discarded writes and the rounding of every tensor fit in what is free."""
    kit, layers = SomeKit(0, 1.0, FakeRuntime()), (LayerShape(8, 128, 128),) * 80
    shape = ModelShape(torch.bfloat16, 32_000, 10**6, 8192, 28672, 0)
    runner = Sized(layers, shape, kit, TorchAttention())
    plan = WarmupPlan(max_rows=1000, max_row_tokens=10**5)
    capacity = runner.promise(plan, (Memory("activations", 10**9),))
    block_bytes = 80 * 16 * 8 * 256 * 2
    tensors = 2 * 80
    taken = (capacity.groups[0].num_blocks + 2) * block_bytes + tensors * kit.allocation_bytes + 10**9
    assert kit.free_bytes() - block_bytes < taken <= kit.free_bytes()
    assert sum(memory.num_bytes for memory in capacity.memory) == kit.free_bytes()


class Sized(PagedRunner):
    """A runner of which only sizes are asked."""

    def hidden(self, step: StepMetadata, keep: Tensor | None) -> Tensor:
        """Not run."""
        raise NotImplementedError

    def logits(self, hidden: Tensor) -> Tensor:
        """Not run."""
        raise NotImplementedError
