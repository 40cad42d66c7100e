"""How the engine computes attention over the paged cache: one of several providers, chosen at load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tgi_core.engine.attention.cache import LayerShape, PagedLayer
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepMetadata


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """An attention layer with `heads` query heads: the shape of its cache, and the parameters of its calls."""

    shape: LayerShape
    heads: int
    parameters: AttentionParameters


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

    def self_check(self, layers: Sequence[AttentionLayer], dtype: torch.dtype, device: torch.device) -> str:
        """What goes wrong when a few ragged rows are computed for such layers on the device; empty when nothing does.

        `attention.checking.disagreement` compares with plain torch. A provider of which the whole model's proof says enough returns "".
        """

    def new_layer(
        self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> PagedLayer:
        """One layer's cache of blocks 1…num_blocks beside the null block, in the layout that this provider reads."""

    def attend(self, query: Tensor, cache: PagedLayer, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """query [heads, tokens, width] over what lies in the cache → [tokens, heads, value width]."""
