"""The interface between the engine and a device package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from tgi_core.backend import Feature, Kernel, Progress
from tgi_core.engine.all_reduce import AllReduceOptions
from tgi_core.engine.attention.cache import KVCacheDtype
from tgi_core.engine.attention.checking import Case, disagreement
from tgi_core.engine.attention.provider import AttentionLayer, AttentionProvider
from tgi_core.engine.decoder.table import DecoderTable
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device_queue import DeviceQueue
from tgi_core.engine.experts import ExpertsKernel
from tgi_core.engine.lora.layers import LoraKernel
from tgi_core.engine.lora.weights import LoraWeights
from tgi_core.engine.quantization.linear import LinearProvider
from tgi_core.engine.runner import Runner
from tgi_core.engine.selection import attempt
from tgi_core.engine.self_check import SelfCheckable


class TableRunner(Runner, SelfCheckable, Protocol):
    """A runner of a whole decoder from its table."""


class DeviceKit(Protocol):
    """A device, as the engine sees it."""

    device: torch.device
    collectives: str
    """torch.distributed's name for the backend that ranks on this device use: gloo, nccl, …"""
    allocation_bytes: int
    """Allocation granularity: a large tensor takes up to this many bytes more than its elements."""
    kv_cache_dtype: KVCacheDtype | None
    """The dtype of the quantized KV cache that the operator asked for; None for a cache in the model's dtype."""

    def choose_dtype(self, asked: str, stored: torch.dtype) -> torch.dtype:
        """The dtype to run in, given the requested one ("auto" or a torch dtype name) and the checkpoint's. Raises Unsupported."""

    def linears(self) -> Sequence[LinearProvider]:
        """Linear providers, best first; `TorchLinears`, which supports every weight, last."""

    def lora_kernel(self, weights: dict[int, LoraWeights]) -> LoraKernel:
        """The kernel that adds adapters to one layer, given their matrices by adapter number."""

    def attention(self) -> Sequence[AttentionProvider]:
        """Attention providers, best first."""

    def queue(self) -> DeviceQueue | None:
        """The device's queue if it runs asynchronously; None if a step is done when its call returns."""

    def free_bytes(self) -> int:
        """Bytes that a cache may take now, after the weights and less the operator's reserve."""

    def default_rows(self) -> int:
        """Rows to promise if the plan does not say."""

    def default_step_tokens(self) -> int:
        """Tokens per step to promise if the plan does not say."""

    def choices(self) -> tuple[Kernel, ...]:
        """The choices for this machine, independent of the model, with reasons."""

    def table_refusal(self) -> str:
        """Why this device cannot run decoders from tables; empty if it can."""

    def table_runner(self, weights: DecoderWeights, progress: Progress) -> TableRunner:
        """A runner of a decoder's table, with its weights and adapters. Raises UnsupportedFamily for sizes or adapters that its kernels do
        not support."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    """How a device would run a decoder's table, as far as it is known before weights are loaded.

    `spare_blocks` are blocks of the cache beside those of rows; `maps_embedding` says that the embedding stays in its file if that has the
    model's dtype; `token_bytes`: see `ModelShape`; `padding_bytes` are what dense weights take beyond their elements.
    """

    kernels: tuple[Kernel, ...]
    features: frozenset[Feature]
    block_sizes: tuple[int, ...]
    spare_blocks: int
    maps_embedding: bool = False
    token_bytes: int | None = None
    padding_bytes: int = 0


@runtime_checkable
class PlansTables(Protocol):
    """A device kit that says how it would run a table."""

    def plan_table(self, table: DecoderTable, dtype: torch.dtype) -> TablePlan:
        """See `TablePlan`. Raises UnsupportedFamily."""


@runtime_checkable
class RunsExperts(Protocol):
    """A device kit with such a kernel; its `table_runner` runs tables with experts, attention sinks and YaRN."""

    def experts(self) -> ExpertsKernel | None:
        """The kernel; None if this device has none after all."""


def experts_of(kit: DeviceKit) -> ExpertsKernel | None:
    """A device's kernel of experts."""
    return kit.experts() if isinstance(kit, RunsExperts) else None


@runtime_checkable
class SumsSmallTensors(Protocol):
    """A device kit with an all-reduce for small tensors."""

    def all_reduce(self) -> AllReduceOptions:
        """What it has, or why not."""


def all_reduce_options(kit: DeviceKit) -> AllReduceOptions | None:
    """A device's all-reduce for small tensors; None if it knows of none."""
    return kit.all_reduce() if isinstance(kit, SumsSmallTensors) else None


def attention_refusal(provider: AttentionProvider, layers: Sequence[AttentionLayer], dtype: torch.dtype, kit: DeviceKit) -> str:
    """Why a provider cannot be used for these layers on the kit's device; empty if it can."""
    shapes, asked = [layer.shape for layer in layers], [layer.parameters for layer in layers]
    quantized = kit.kv_cache_dtype
    if quantized is not None and quantized.dtype not in provider.kv_cache_dtypes:
        return f"no cache in {quantized.name}"
    reason = attempt(provider.probe) or provider.refusal(shapes, asked, dtype)
    reason = reason or attempt(lambda: provider.self_check(layers, dtype, kit.device))
    if reason or quantized is None:
        return reason
    case = Case(block_size=provider.block_sizes[0], cache_dtype=quantized.dtype)
    return attempt(lambda: disagreement(provider, layers, dtype, kit.device, case))
