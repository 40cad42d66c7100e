"""What a device package gives to the shared engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from tgi_core.backend import Kernel, Progress
from tgi_core.engine.attention.cache import Fp8Cache
from tgi_core.engine.attention.checking import Case, disagreement
from tgi_core.engine.attention.provider import AttentionLayer, AttentionProvider
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device_queue import DeviceQueue
from tgi_core.engine.lora.layers import LowRankSums
from tgi_core.engine.lora.weights import Products
from tgi_core.engine.quantization.linear import LinearProvider
from tgi_core.engine.runner import Runner
from tgi_core.engine.self_check import Provable


class TableRunner(Runner, Provable, Protocol):
    """A runner of a whole decoder from its table."""


class DeviceKit(Protocol):
    """A device, as far as the engine must know it."""

    device: torch.device
    collectives: str
    """torch.distributed's name for what ranks on this device talk over: gloo, nccl, …"""
    fp8_cache: Fp8Cache | None
    """What the cache is to be made of, where the operator wants numbers of 8 bits; None: of the dtype that a model runs in."""

    def choose_dtype(self, asked: str, stored: torch.dtype) -> torch.dtype:
        """The dtype to run in, for the name asked ("auto" or a torch dtype name) and the one stored. Raises Unsupported."""

    def linears(self) -> Sequence[LinearProvider]:
        """What computes products with weights, best first; `TorchLinears`, which serves all, last."""

    def low_rank_sums(self, products: dict[int, Products]) -> LowRankSums:
        """How adapters are added to one layer, of which there are matrices by adapter number."""

    def attention(self) -> Sequence[AttentionProvider]:
        """Attention providers, best first."""

    def queue(self) -> DeviceQueue | None:
        """The device's queue, where it works behind the host; None where a step is done when its call returns."""

    def free_bytes(self) -> int:
        """Memory that a cache may take now, after the weights and with the operator's fraction applied."""

    def default_rows(self) -> int:
        """How many rows to promise when nobody says."""

    def default_step_tokens(self) -> int:
        """How many tokens of one step to promise when nobody says."""

    def choices(self) -> tuple[Kernel, ...]:
        """What was chosen for this machine before any model was looked at, with reasons."""

    def table_refusal(self) -> str:
        """Why this device cannot run decoders from tables; empty when it can."""

    def table_runner(self, weights: DecoderWeights, progress: Progress) -> TableRunner:
        """A runner of a decoder's table, with its weights and adapters. Raises UnsupportedFamily for sizes that its kernels lack, and where
        it adds no adapters."""


def attention_refusal(provider: AttentionProvider, layers: Sequence[AttentionLayer], dtype: torch.dtype, kit: DeviceKit) -> str:
    """Why a provider cannot be used for these layers on a kit's device; empty when it can."""
    shapes, asked = [layer.shape for layer in layers], [layer.parameters for layer in layers]
    fp8 = kit.fp8_cache
    if fp8 is not None and fp8.dtype not in provider.fp8_caches:
        return f"no cache in {fp8.name}"
    reason = provider.probe() or provider.refusal(shapes, asked, dtype) or provider.self_check(layers, dtype, kit.device)
    if reason or fp8 is None:
        return reason
    case = Case(block_size=provider.block_sizes[0], cache_dtype=fp8.dtype)
    return disagreement(provider, layers, dtype, kit.device, case)
