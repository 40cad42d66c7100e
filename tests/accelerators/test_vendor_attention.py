"""Vendors' attention libraries: the calls that we make, what is refused before them, and faults that a self-check finds."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from tgi_backend_cuda.attention.flash_attn2 import FlashAttention2
from tgi_backend_cuda.attention.flash_attn3 import FlashAttention3
from tgi_backend_cuda.attention.flashinfer import FlashInfer
from tgi_backend_rocm.aiter import AiterAttention
from tgi_backend_xpu.ipex import IpexAttention
from tgi_backend_xpu.xpu_kernels import XpuKernelsAttention
from torch.overrides import TorchFunctionMode

from tests.accelerators import vendors
from tgi_core.backend import Request
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.accelerator.varlen import VarlenAttention
from tgi_core.engine.accelerator.vendor_attention import Call, VendorAttention
from tgi_core.engine.attention.cache import LayerShape
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import build
from tgi_core.engine.attention.provider import AttentionLayer
from tgi_core.engine.selection import attempt

CPU = torch.device("cpu")
SHAPE = LayerShape(1, 64, 64)
PLAIN = AttentionParameters(scaling=0.125)

MAKERS: dict[str, tuple[Callable[[], VendorAttention], Callable[[], ModuleType]]] = {
    "flash-attn 2": (lambda: FlashAttention2(CPU), vendors.flash_attn2),
    "flash-attn 3": (lambda: FlashAttention3(CPU), vendors.flash_attn3),
    "flashinfer": (lambda: FlashInfer(CPU), vendors.flashinfer),
    "torch varlen": (lambda: VarlenAttention(CPU), vendors.varlen),
    "aiter": (lambda: AiterAttention(CPU, "gfx942"), vendors.aiter),
    "ipex": (lambda: IpexAttention(CPU), vendors.ipex),
    "vllm-xpu-kernels": (lambda: XpuKernelsAttention(CPU), vendors.xpu_kernels),
}
NAMES = sorted(MAKERS)


def provider_of(name: str, monkeypatch: pytest.MonkeyPatch, library: ModuleType | None = None) -> VendorAttention:
    """The provider over a stub of its library, probed."""
    make, stub = MAKERS[name]
    provider, library = make(), library or stub()
    parts = provider.module.split(".")
    for count in range(1, len(parts)):
        package = ".".join(parts[:count])
        if parts[0] != "torch":
            monkeypatch.setitem(sys.modules, package, vendors.Strict(package, __path__=[]))
    monkeypatch.setitem(sys.modules, provider.module, library)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    assert provider.probe() == ""
    return provider


def checked(provider: VendorAttention, parameters: AttentionParameters = PLAIN, dtype: torch.dtype = torch.bfloat16) -> str:
    """What its self-check says of layers that are alike."""
    layers = [AttentionLayer(SHAPE, 2, parameters)] * 2
    assert provider.refusal([SHAPE] * 2, [parameters] * 2, dtype) == ""
    return attempt(lambda: provider.self_check(layers, dtype, CPU))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_the_calls_mean_attention(name: str, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Decode rows, first chunks and later ones, in one step: what the library is told is what plain torch computes."""
    assert checked(provider_of(name, monkeypatch), dtype=dtype) == ""


@pytest.mark.parametrize("name", NAMES)
def test_windows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window counts the query itself for us, and what is beside it for them."""
    assert checked(provider_of(name, monkeypatch), AttentionParameters(scaling=0.125, window=17)) == ""


@pytest.mark.parametrize("name", ["flash-attn 2", "flash-attn 3", "flashinfer", "aiter", "ipex"])
def test_soft_caps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that cap scores are told the cap."""
    assert checked(provider_of(name, monkeypatch), AttentionParameters(scaling=0.5, softcap=3.0)) == ""


@pytest.mark.parametrize("name", ["torch varlen", "vllm-xpu-kernels"])
def test_soft_caps_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that don't are not asked to."""
    asked = AttentionParameters(scaling=0.5, softcap=3.0)
    assert provider_of(name, monkeypatch).refusal([SHAPE], [asked], torch.bfloat16) == "no soft cap"


@pytest.mark.parametrize(
    ("layer", "asked", "dtype", "reason"),
    [
        (SHAPE, PLAIN, torch.float32, "no float32"),
        (LayerShape(2, 192, 128), PLAIN, torch.bfloat16, "keys and values of different width"),
        (LayerShape(2, 320, 320), PLAIN, torch.bfloat16, "no heads of 320 elements"),
        (SHAPE, AttentionParameters(0.1, chunk=64), torch.bfloat16, "no rows in chunks"),
        (SHAPE, AttentionParameters(0.1, sinks=torch.zeros(2)), torch.bfloat16, "no sinks"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_refusals(
    name: str, monkeypatch: pytest.MonkeyPatch, layer: LayerShape, asked: AttentionParameters, dtype: torch.dtype, reason: str
) -> None:
    """What a library does not compute is refused in a few words, before it is called."""
    assert provider_of(name, monkeypatch).refusal([SHAPE, layer], [PLAIN, asked], dtype) == reason


@pytest.mark.parametrize("name", NAMES)
def test_a_library_that_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module that cannot be imported is named."""
    provider = MAKERS[name][0]()
    monkeypatch.setitem(sys.modules, provider.module, None)
    assert provider.probe().startswith(f"{provider.module} cannot be imported")


@pytest.mark.parametrize("name", NAMES)
def test_a_library_of_another_version(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that is gone, or that lost an argument, is found at the probe and not in a request."""
    provider = MAKERS[name][0]()
    provider_of(name, monkeypatch)
    monkeypatch.setitem(sys.modules, provider.module, ModuleType(provider.module))
    assert provider.probe() == f"{provider.module} has no {provider.calls[0].path}"
    monkeypatch.setitem(sys.modules, provider.module, MAKERS[name][1]())
    provider.calls = (Call(provider.calls[0].path, ("an_argument_of_tomorrow",)),)
    assert provider.probe().endswith("takes no an_argument_of_tomorrow")


def test_torch_before_paged_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11 has the function without blocks: the probe says what it lacks."""

    def varlen_attn(query: object, key: object, *, scale: float | None = None, window_size: tuple[int, int] = (-1, -1)) -> None:
        """As of 2.11."""

    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", vendors.Strict("varlen", varlen_attn=varlen_attn))
    assert VarlenAttention(CPU).probe().endswith("takes no enable_gqa, seqused_k, block_table, num_splits")


def test_the_real_signature_of_torch() -> None:
    """The torch that is installed here has all that we use."""
    assert VarlenAttention(CPU).probe() == ""


@pytest.mark.parametrize("name", NAMES)
def test_silent_faults(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that leaves a long row unwritten, as several releases did, does not pass its self-check."""

    def faulty(*arguments: object) -> torch.Tensor:
        out = original(*arguments)
        out[-1] = math.nan if name == "aiter" else 0
        return out

    original = vendors.paged
    monkeypatch.setattr(vendors, "paged", faulty)
    assert "differ from the reference by" in checked(provider_of(name, monkeypatch))


def test_a_library_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own complaint is the reason: here that blocks have the wrong size for it."""
    provider = provider_of("flash-attn 2", monkeypatch, vendors.flash_attn2(page_multiple=512))
    assert checked(provider) == "RuntimeError: Paged KV cache block size must be divisible by 512"


def test_flashinfer_plans_once_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that are alike share a wrapper and its plan; the workspace is one for all."""
    provider = provider_of("flashinfer", monkeypatch)
    assert checked(provider) == ""
    assert isinstance(provider, FlashInfer)
    (wrapper,) = provider.wrappers.values()
    assert wrapper.plans == 2  # the check's two steps
    assert checked(provider, AttentionParameters(scaling=0.125, window=9)) == "" and len(provider.wrappers) == 2


class Uploads(TorchFunctionMode):
    """Notes what goes to a device that is not here, and how."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is torch.Tensor.pin_memory:
            self.calls.append("pin")
            return args[0]
        if func is torch.Tensor.to and torch.device("cuda") in args:
            self.calls.append("upload" if (kwargs or {}).get("non_blocking") else "blocking upload")
            return args[0]
        return func(*args, **(kwargs or {}))


def test_flashinfer_uploads_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a step go to the device from pinned memory, in the queue: the host does not wait for what the device still runs."""
    provider = provider_of("flashinfer", monkeypatch)
    provider._device = torch.device("cuda")
    monkeypatch.setattr(torch, "empty", lambda *sizes, device=None, **kinds: torch.zeros(*sizes, **kinds))
    cache = provider.new_layer(SHAPE, 2, 16, torch.bfloat16, CPU)
    tokens = [0] * 20
    request = Request(1, tuple(tokens), 20, 0, ((1, 2),), 20)
    step = build([RowInput(RowState(request, tokens, 20, ([1, 2],)), 0, 20, yields=True)], 16, CPU)
    with Uploads() as uploads:
        provider.attend(torch.zeros(2, 20, 64, dtype=torch.bfloat16), cache, step, PLAIN)
    assert uploads.calls == ["pin", "upload"]


def test_devices_without_the_library_s_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """flash-attn 3 is for Hopper, AITER for two architectures, and vLLM's kernels may lack their native part: the probe says so."""
    for name in ("flash-attn 3", "aiter", "vllm-xpu-kernels"):
        provider_of(name, monkeypatch)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (10, 0))
    assert FlashAttention3(CPU).probe() == "compute capability 10.0, and it has code for 9.0"
    assert AiterAttention(CPU, "gfx1100").probe() == "gfx1100, and it has code for gfx942, gfx950"
    provider = XpuKernelsAttention(CPU)
    monkeypatch.setitem(sys.modules, provider.module, vendors.xpu_kernels(available=False))
    assert "native part does not load" in provider.probe()
