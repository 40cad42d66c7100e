"""How the engine computes attention over the paged cache: one of several providers, chosen at load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from tgi_core.engine.attention.cache import LayerShape, PagedLayer
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepArrays, StepMetadata


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """An attention layer with `heads` query heads: the shape of its cache, and the parameters of its calls."""

    shape: LayerShape
    heads: int
    parameters: AttentionParameters


SEES_NOTHING_AHEAD = "tokens cannot see those after them"
"""Why a provider is rejected that does not say `sees_ahead`, where it must."""


class AttentionProvider(Protocol):
    """One way to compute attention over the paged cache."""

    name: str
    block_sizes: tuple[int, ...]
    """Supported positions per block, best first."""
    kv_cache_dtypes: tuple[torch.dtype, ...]
    """Dtypes of quantized KV caches that it supports besides the model's dtype."""
    invariant: bool
    """Whether a query's result has the same bits however many queries and rows run with it."""
    sees_ahead: bool
    """Whether tokens of an image can see those after them in the same image; see `StepMetadata.spans`."""

    def probe(self) -> str:
        """Why this provider cannot run here; empty if it can."""

    def refusal(self, layers: Sequence[LayerShape], asked: Sequence[AttentionParameters], dtype: torch.dtype) -> str:
        """Why this provider does not support these layers with these parameters, one for each layer; empty if it does."""

    def self_check(self, layers: Sequence[AttentionLayer], dtype: torch.dtype, device: torch.device) -> str:
        """What is wrong with the outputs of a few ragged rows over such layers on the device; empty if they are right.

        `attention.checking.disagreement` compares with plain torch. A provider that the self-check of the whole model covers returns "".
        """

    def new_layer(
        self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> PagedLayer:
        """One layer's cache of blocks 1…num_blocks and the null block, in this provider's layout."""

    def attend(self, query: Tensor, cache: PagedLayer, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """query [heads, tokens, width], over keys and values in the cache → [tokens, heads, value width]."""


@runtime_checkable
class ArrayAttention(Protocol):
    """A provider that computes attention from the arrays of a step alone, so that steps with prompts can be captured too."""

    def attend_rows(self, query: Tensor, cache: Any, step: StepArrays, parameters: AttentionParameters) -> Tensor:
        """`AttentionProvider.attend`, from the step's arrays. Never synchronizes."""


@runtime_checkable
class KVCacheAllocator(Protocol):
    """A provider that makes the caches of all layers at once."""

    def new_layers(
        self, shapes: Sequence[LayerShape], num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> tuple[PagedLayer, ...]:
        """All layers' caches in the order in which a step runs the layers; see `AttentionProvider.new_layer`."""
