"""What a device package gives to the shared engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tgi_core.backend import Kernel, Progress
from tgi_core.engine.ahead.queue import DeviceQueue
from tgi_core.engine.attention.cache import Fp8Cache, LayerShape, PagedLayer
from tgi_core.engine.attention.checking import AskedLayer, Case, disagreement
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.lora.layers import LowRankSums
from tgi_core.engine.lora.matmuls import Products
from tgi_core.engine.quantization.linear import LinearProvider
from tgi_core.engine.runner import Runner
from tgi_core.engine.self_check import Provable


class AttentionProvider(Protocol):
    """One way to compute attention over the paged cache."""

    name: str
    block_sizes: tuple[int, ...]
    """Positions per block that it reads, the best first."""
    fp8_caches: tuple[torch.dtype, ...]
    """Types of 8 bits that its cache may have, beside the dtype that the model runs in."""

    def probe(self) -> str:
        """Why this provider cannot run here; empty when it can."""

    def refusal(self, layers: Sequence[LayerShape], asked: Sequence[AttentionParameters], dtype: torch.dtype) -> str:
        """Why this provider cannot serve these layers, with what they ask for in turn; empty when it can."""

    def self_check(self, layers: Sequence[AskedLayer], dtype: torch.dtype, device: torch.device) -> str:
        """What goes wrong when a few ragged rows are computed for such layers on the device; empty when nothing does.

        `attention.checking.disagreement` compares with plain torch. A provider of which the whole model's proof says enough returns "".
        """

    def new_layer(
        self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> PagedLayer:
        """One layer's cache of blocks 1…num_blocks beside the null block, in the layout that this provider reads."""

    def attend(self, query: Tensor, cache: PagedLayer, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """query [heads, tokens, width] over what lies in the cache → [tokens, heads, value width]."""


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


def unserved(provider: AttentionProvider, layers: Sequence[AskedLayer], dtype: torch.dtype, kit: DeviceKit) -> str:
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
