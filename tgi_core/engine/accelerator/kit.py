"""A device kit over torch's own device module; packages add names, limits and kernels."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.metadata import version
from typing import Self, cast

import torch

from tgi_core.backend import BackendError, Kernel, Progress, Unsupported
from tgi_core.engine.accelerator.discovery import is_verified
from tgi_core.engine.accelerator.failures import FailureTexts, device_failure
from tgi_core.engine.accelerator.queue import NewGraph, StreamQueue
from tgi_core.engine.accelerator.runtime import Runtime
from tgi_core.engine.accelerator.timer import StreamTimer
from tgi_core.engine.accelerator.vendor_attention import VendorAttention, build_of
from tgi_core.engine.ahead.processing_check import processing_disagreement
from tgi_core.engine.ahead.sampler_check import sampler_disagreement
from tgi_core.engine.ahead.sampling import TorchSampler
from tgi_core.engine.all_reduce import AllReduceOptions, TorchSymmetricMemory
from tgi_core.engine.attention.cache import KVCacheDtype
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.attention.timing import Timer
from tgi_core.engine.decoder.operators import Operators
from tgi_core.engine.decoder.table import DecoderTable
from tgi_core.engine.decoder.torch_operators import TorchOperators
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device import TablePlan, TableRunner
from tgi_core.engine.device_queue import DeviceQueue, StepSampler
from tgi_core.engine.experts import ExpertsKernel
from tgi_core.engine.lora.layers import LoraKernel, TorchLoraKernel
from tgi_core.engine.lora.weights import LoraWeights
from tgi_core.engine.paged_decoder import PagedDecoderRunner, choose_parts
from tgi_core.engine.quantization.linear import LinearProvider
from tgi_core.engine.quantization.rounded_linear import ScaledMMLinears
from tgi_core.engine.quantization.rows import rounded_rows
from tgi_core.engine.quantization.torch_linear import TorchLinears
from tgi_core.engine.selection import attempt
from tgi_core.engine.triton import probing
from tgi_core.engine.triton.linear import TritonLinears
from tgi_core.engine.triton.provider import FP8_DTYPES, TritonAttention
from tgi_core.engine.triton.rounded_linear import TritonRoundedLinears, round_rows
from tgi_core.engine.triton.tiles import TileTable

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "half": torch.float16}
"""Dtypes by the names that users give."""

ONE_SHOT_KIB = 256
"""KiB up to which tensors are summed over symmetric memory: each rank reads those of all ranks. An estimate, not a measurement."""

MOST_ONE_SHOT_KIB = 65536
"""The most that the operator can set."""

OPERATORS = "TGI_OPERATORS"
"""The environment variable that switches fused operators and the fused sampler off: `torch`."""

DRIVER_BYTES = 256 << 20
"""Minimum device memory left to the driver: torch does not count code that is loaded at its first call, and other libraries' own
allocations."""

_log = logging.getLogger("tgi_core.engine")


class AcceleratorKit(ABC):
    """One device of a machine, for one rank."""

    name: str
    """The backend's name."""
    device_type: str
    """torch's device type."""
    collectives: str
    failures: FailureTexts = FailureTexts()
    precision: torch.dtype = torch.float64
    """The dtype of draws."""
    allocation_bytes = 2 << 20

    kv_cache_dtype: KVCacheDtype | None = None

    def __init__(self, index: int, memory_fraction: float, runtime: Runtime | None = None) -> None:
        self.device = torch.device(self.device_type, index)
        self.runtime = runtime or cast(Runtime, torch.get_device_module(self.device))
        self._memory_fraction = memory_fraction
        self._without: dict[str, Kernel] = {}
        count = self.runtime.device_count()
        if index >= count:
            raise Unsupported(f"rank {index} of this machine needs its own device, but only {count} can be used")
        self.runtime.set_device(self.device)

    @abstractmethod
    def providers(self) -> Sequence[AttentionProvider]:
        """All attention providers for this device, best first; plain torch last."""

    def tiles(self) -> TileTable:
        """Tile sizes of our own kernels on this device. Raises LookupError if there are none."""
        raise LookupError(f"no tiles for {self.runtime.get_device_name(self.device)}")

    def with_cache(self, asked: str) -> Self:
        """This kit with a KV cache of the requested dtype. Raises Unsupported if the device cannot read it."""
        if asked == "auto":
            return self
        try:
            variant = self.tiles().fp8
        except LookupError:
            variant = ""
        if asked != "float8_e4m3fn" or not variant:
            raise Unsupported(
                f"--kv-cache-dtype: {self.runtime.get_device_name(self.device)} does not support a cache in {asked}; "
                + ("it supports float8_e4m3fn" if variant else "leave it out")
            )
        self.kv_cache_dtype = KVCacheDtype(asked, FP8_DTYPES[variant])
        return self

    def triton(self, multiprocessors: int) -> Sequence[AttentionProvider]:
        """The provider of our own kernels, if there are tiles for the device."""
        try:
            return (TritonAttention(self.tiles(), multiprocessors),)
        except LookupError as reason:
            self._without["tiles"] = Kernel("tiles", "none", str(reason))
            return ()

    def attention(self) -> Sequence[AttentionProvider]:
        """Attention providers, best first; if the operator has set `TGI_<NAME>_ATTENTION`, those that it names."""
        asked = os.environ.get(self._variable("attention"), "")
        found = {provider.name: provider for provider in self.providers()}
        if not asked:
            return tuple(found.values())
        names = [name.strip() for name in asked.split(",")]
        if unknown := [name for name in names if name not in found]:
            raise Unsupported(f"{self._variable('attention')}: no {unknown[0]!r}; there are: {', '.join(found)}")
        return tuple(found[name] for name in names)

    def attention_timer(self) -> Timer | None:
        """A stream's clock; None if the operator has named providers, whose order then decides."""
        if os.environ.get(self._variable("attention"), ""):
            return None
        queue = StreamQueue(self.runtime, self.device, self.translated, self._graph(), TorchSampler(self.precision))
        return StreamTimer(queue)

    def attention_versions(self, providers: Sequence[AttentionProvider]) -> tuple[str, ...]:
        """The device, its driver, and the versions of ourselves, torch, Triton and the vendors' libraries."""
        graphs = self._graph()
        return (
            self.runtime.get_device_name(self.device),
            self.driver(),
            f"tgi-core {version('tgi-core')}, torch {torch.__version__}, triton {build_of('triton')}",
            graphs if isinstance(graphs, str) else "graphs",
            *(f"{each.name} {build_of(each.module) if isinstance(each, VendorAttention) else ''}" for each in providers),
        )

    def driver(self) -> str:
        """The version of the device's driver; empty if it cannot be told."""
        return ""

    @abstractmethod
    def graph(self) -> NewGraph | str:
        """How to create a graph, or why decode steps are not captured on this device."""

    def queue(self) -> DeviceQueue:
        """A stream of the device. The operator can switch graphs and running ahead off: `TGI_<NAME>_GRAPHS`, `TGI_<NAME>_RUN_AHEAD`."""
        in_flight = 1 if self._switched("run_ahead") else 2
        return StreamQueue(self.runtime, self.device, self.translated, self._graph(), self._sampler(), in_flight)

    def choices(self) -> tuple[Kernel, ...]:
        """The device, what the operator has switched, whether the package was verified on hardware, and what is missing."""
        self.providers()  # records what is missing
        operators = f"{OPERATORS}=torch" if self._only_torch() else ""
        rounds = f"{self._variable('w8a8')}=1" if self._rounds_inputs() else ""
        switched = filter(None, (self._switched("graphs"), self._switched("run_ahead"), operators, rounds))
        return (
            Kernel("device", self.runtime.get_device_name(self.device)),
            *(Kernel("switch", reason) for reason in switched),
            self._verified(),
            *((Kernel("triton", "none", reason),) if (reason := probing.probe()) else ()),
            *self._without.values(),
        )

    def _verified(self) -> Kernel:
        """Whether this version of the package has been run on a device, according to the report that it contains."""
        package = f"tgi_backend_{self.name}"
        if is_verified(package):
            return Kernel("verified_on_hardware", "true", f"{package} holds a report of the conformance suite on a device")
        return Kernel("verified_on_hardware", "false", f"no report of the conformance suite on a device is in {package}")

    def choose_dtype(self, asked: str, stored: torch.dtype) -> torch.dtype:
        """The requested dtype, or the stored one; without a request, float16 for bfloat16 on devices that don't compute it."""
        wanted = stored if asked == "auto" else DTYPES.get(asked)
        if wanted not in DTYPES.values():
            raise Unsupported(f"dtype {asked if asked != 'auto' else stored}: this device runs {', '.join(DTYPES)}")
        if wanted is torch.bfloat16 and not self.runtime.is_bf16_supported(including_emulation=False):
            if asked != "auto":
                raise Unsupported(f"dtype bfloat16: {self.runtime.get_device_name(self.device)} does not support it; use float16")
            return torch.float16
        return cast(torch.dtype, wanted)

    def linears(self) -> Sequence[LinearProvider]:
        """Our kernels for quantized weights; the vendor's GEMMs, through torch, for all others. The operator can let the inputs of 8-bit
        weights be rounded to eight bits: `TGI_<NAME>_W8A8=1`."""
        if self._only_torch():
            return (TorchLinears(),)
        return (*(self._rounded() if self._rounds_inputs() else ()), TritonLinears(), TorchLinears())

    def _rounded(self) -> Sequence[LinearProvider]:
        """GEMMs of 8-bit inputs: the vendor's for floats, then our own."""
        try:
            fp8 = FP8_DTYPES.get(self.tiles().fp8)
        except LookupError:
            fp8 = None
        return (ScaledMMLinears(fp8, rounded_rows if probing.probe() else round_rows), TritonRoundedLinears(fp8))

    def _rounds_inputs(self) -> bool:
        return os.environ.get(self._variable("w8a8"), "").strip() == "1"

    def lora_kernel(self, weights: dict[int, LoraWeights]) -> LoraKernel:
        """The vendor's GEMMs, through torch."""
        return TorchLoraKernel(weights)

    def free_bytes(self) -> int:
        """Bytes that the driver reports as free now, less the operator's reserve, which is at least `DRIVER_BYTES`."""
        self.runtime.empty_cache()
        free, total = self.runtime.mem_get_info(self.device)
        return max(0, free - max(DRIVER_BYTES, total - int(self._memory_fraction * total)))

    def default_rows(self) -> int:
        """Enough rows to amortize reading the weights."""
        return 256

    def default_step_tokens(self) -> int:
        """A prefill chunk that fills the device, but holds up decode rows for only tens of milliseconds."""
        return 8192

    def all_reduce(self) -> AllReduceOptions:
        """torch's symmetric memory, for tensors of up to `TGI_<NAME>_ONE_SHOT_KIB` KiB; 0 switches it off. Raises Unsupported."""
        variable = self._variable("one_shot_kib")
        asked = os.environ.get(variable, "").strip() or str(ONE_SHOT_KIB)
        if not asked.isascii() or not asked.isdigit() or int(asked) > MOST_ONE_SHOT_KIB:
            raise Unsupported(f"{variable}={asked[:40]!r}: set it to 0 to {MOST_ONE_SHOT_KIB}, or leave it out")
        return AllReduceOptions(TorchSymmetricMemory(), int(asked) << 10, "" if int(asked) else f"{variable}=0")

    def experts(self) -> ExpertsKernel | None:
        """Our kernel of experts, if Triton is installed; torch's grouped GEMM waits for the device in most dtypes and on most chips."""
        return None if self._only_torch() or probing.probe() else self._operators()[0]

    def table_refusal(self) -> str:
        """Why this device cannot run decoders from tables; empty if it can."""
        return ""

    def table_runner(self, weights: DecoderWeights, progress: Progress) -> TableRunner:
        """A decoder's table, with fused kernels if Triton is installed, else with torch's operators. Raises UnsupportedFamily."""
        return PagedDecoderRunner(self, weights, self._operators(), progress)

    def plan_table(self, table: DecoderTable, dtype: torch.dtype) -> TablePlan:
        """The plan of the runner that `table_runner` would make. Raises UnsupportedFamily."""
        _, provider, kernels = choose_parts(table, dtype, self, self._operators())
        return TablePlan(kernels, PagedDecoderRunner.features, provider.block_sizes, PagedDecoderRunner.spare_blocks)

    def translated(self, error: Exception) -> BackendError | None:
        """The contract's error for one of the device's own; None for all others."""
        return device_failure(error, self.failures)

    def _operators(self) -> Sequence[Operators]:
        if self._only_torch() or probing.probe():
            return (TorchOperators(),)
        from tgi_core.engine.triton.operators import TritonOperators

        return (TritonOperators(), TorchOperators())

    def _sampler(self) -> StepSampler:
        """Our kernels if they agree with torch's sampler, which is the fallback."""
        plain = TorchSampler(self.precision)
        if self._only_torch() or probing.probe():
            return plain
        from tgi_core.engine.triton.sampling import TritonSampler

        fused = TritonSampler(self.precision)
        reason = attempt(lambda: sampler_disagreement(fused, self.device))
        if not reason:
            fused.processes = not (why := attempt(lambda: processing_disagreement(fused, self.device)))
            if why:
                self._without["processed rows"] = Kernel("processed rows", "host", why)
                _log.warning("rows with penalties, masks, typical-p and top tokens are sampled on the host: %s", why)
            return fused
        self._without["sampler"] = Kernel("sampler", plain.name, f"not {fused.name}: {reason}")
        _log.warning("sampler: not %s: %s", fused.name, reason)
        return plain

    def _only_torch(self) -> bool:
        """Whether the operator has switched our own operators and our sampler off."""
        asked = os.environ.get(OPERATORS, "")
        if asked not in ("", "torch"):
            raise Unsupported(f"{OPERATORS}={asked!r}: set it to torch to use torch's operators only, or leave it out")
        return asked == "torch"

    def _graph(self) -> NewGraph | str:
        return self._switched("graphs") or self.graph()

    def _switched(self, what: str) -> str:
        """The reason, if the operator has switched something off with an environment variable."""
        variable = self._variable(what)
        return f"{variable}=off" if os.environ.get(variable, "").lower() in ("off", "0", "false") else ""

    def _variable(self, what: str) -> str:
        return f"TGI_{self.name}_{what}".upper()
