"""The CPU as the engine sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch

from tgi_backend_cpu.adapters import NativeLoraKernel
from tgi_backend_cpu.attention import CACHE_DTYPES, NativeAttention
from tgi_backend_cpu.choosing import open_kernels
from tgi_backend_cpu.decoder import DecoderRunner, refusal, step_kernel
from tgi_backend_cpu.kernels import Arena
from tgi_backend_cpu.limits import memory_limit
from tgi_backend_cpu.linear.native import NativeLinears
from tgi_backend_cpu.linear.onednn import OneDnnLinears
from tgi_backend_cpu.table_sizes import padding_bytes, workspace_bytes
from tgi_core.backend import Kernel, Progress, Unsupported
from tgi_core.engine.attention.cache import KVCacheDtype
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.attention.torch_sdpa import TorchAttention
from tgi_core.engine.decoder.table import DecoderTable
from tgi_core.engine.decoder.unsupported import UnsupportedFamily
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device import TablePlan, TableRunner
from tgi_core.engine.lora.layers import LoraKernel, TorchLoraKernel
from tgi_core.engine.lora.weights import LoraWeights
from tgi_core.engine.quantization.linear import LinearProvider
from tgi_core.engine.quantization.torch_linear import TorchLinears

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class CpuKit:
    """Memory, threads and kernels of this machine, divided equally among `ranks`."""

    collectives = "gloo"
    allocation_bytes = 0
    kv_cache_dtype: KVCacheDtype | None = None

    def __init__(self, threads: int, memory_fraction: float, ranks: int = 1, fault: str = "") -> None:
        """`fault`: why there can be no native kernels, if that is known."""
        self.device = torch.device("cpu")
        self._memory_fraction, self._ranks = memory_fraction, ranks
        torch.set_num_threads(threads)
        self.kernels, self.choice = open_kernels(threads, fault)
        self._arena = None if self.kernels is None else Arena(self.kernels)

    def with_cache(self, asked: str) -> Self:
        """This kit with a KV cache of the requested dtype. Raises Unsupported for one that the native kernels do not have."""
        if asked == "auto":
            return self
        if asked not in CACHE_DTYPES:
            raise Unsupported(
                f"--kv-cache-dtype: the CPU does not support a cache in {asked}; it supports {' and '.join(CACHE_DTYPES)}"
            )
        self.kv_cache_dtype = KVCacheDtype(asked, CACHE_DTYPES[asked])
        return self

    def choose_dtype(self, asked: str, stored: torch.dtype) -> torch.dtype:
        """float32 or bfloat16. A float16 checkpoint runs in bfloat16, since processors support that rather than float16."""
        if asked == "auto":
            return torch.float32 if stored not in (torch.bfloat16, torch.float16) else torch.bfloat16
        if asked in ("float16", "half"):
            return torch.bfloat16
        if asked not in _DTYPES:
            raise Unsupported(f"dtype {asked}: the CPU runs {', '.join(_DTYPES)} (float16 is run as bfloat16)")
        return _DTYPES[asked]

    def linears(self) -> Sequence[LinearProvider]:
        """The native kernels if they are available, then oneDNN, then torch."""
        return (NativeLinears(self.kernels, self._arena, self.choice.reason), OneDnnLinears(), TorchLinears())

    def lora_kernel(self, weights: dict[int, LoraWeights]) -> LoraKernel:
        """The native kernels if they are available, so that a row's bits don't depend on its step."""
        if self.kernels is None or self._arena is None:
            return TorchLoraKernel(weights)
        return NativeLoraKernel(self.kernels, self._arena, weights)

    def attention(self) -> Sequence[AttentionProvider]:
        """Native attention if the kernels are available, then torch's."""
        return (NativeAttention(self.kernels, self.choice.reason), TorchAttention())

    def choices(self) -> tuple[Kernel, ...]:
        """The instruction set of the native kernels, or torch."""
        return (Kernel("kernels", self.choice.name, self.choice.reason),)

    def table_refusal(self) -> str:
        """Why decoders run through transformers' modules here; empty if they don't."""
        return "" if self.kernels is not None else f"no native kernels: {self.choice.reason}"

    def table_runner(self, weights: DecoderWeights, progress: Progress) -> TableRunner:
        """The fused step over a decoder's table. Raises UnsupportedFamily."""
        if self.kernels is None:
            raise UnsupportedFamily(self.table_refusal())
        return DecoderRunner(self.kernels, self, weights, progress)

    def plan_table(self, table: DecoderTable, dtype: torch.dtype) -> TablePlan:
        """The plan of the runner that `table_runner` would make. Raises UnsupportedFamily."""
        if self.kernels is None:
            raise UnsupportedFamily(self.table_refusal())
        if reason := refusal(table, dtype):
            raise UnsupportedFamily(reason)
        return TablePlan(
            (step_kernel(table),),
            DecoderRunner.features,
            DecoderRunner.block_sizes,
            0,
            maps_embedding=True,
            token_bytes=workspace_bytes(table, dtype),
            padding_bytes=padding_bytes(self.kernels, table, dtype),
        )

    def queue(self) -> None:
        """None: a step is done when its call returns."""

    def free_bytes(self) -> int:
        """This rank's part of the memory available now, less the operator's reserve."""
        limit = memory_limit()
        return max(0, limit.available - int((1 - self._memory_fraction) * limit.total)) // self._ranks

    def default_rows(self) -> int:
        """Few: on a CPU, more rows than this only wait for each other."""
        return 64

    def default_step_tokens(self) -> int:
        """A prefill chunk that takes well under a second for a small model."""
        return 2048
