"""The ragged engine: prefill and decode rows of one step, flat, over a paged cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tgi_core.backend import Capacity, Feature, Kernel, Memory, WarmupPlan
from tgi_core.backend.ledger import Work
from tgi_core.engine.attention.cache import LayerShape, PagedCache
from tgi_core.engine.attention.interface import AttentionParameters, attending
from tgi_core.engine.attention.metadata import StepMetadata, build
from tgi_core.engine.device import AttentionProvider, DeviceKit
from tgi_core.engine.kept import split_logits, wanted_positions
from tgi_core.engine.lora.adapters import Adapters
from tgi_core.engine.memory import Agree, plan_capacity
from tgi_core.engine.models.calling import Call
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.runner import StepLogits


class RaggedStep:
    """Answers the attention calls of one step, layer after layer."""

    __slots__ = ("cache", "layer", "metadata", "provider")

    def __init__(self, cache: PagedCache, metadata: StepMetadata, provider: AttentionProvider) -> None:
        self.cache, self.metadata, self.provider = cache, metadata, provider
        self.layer = 0

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, parameters: AttentionParameters) -> Tensor:
        """Write the layer's keys and values, then attend; see `Attending`."""
        layer = self.cache.layers[self.layer]
        self.layer += 1
        if self.metadata.begun is not None:
            layer.wipe(self.metadata.begun)
        layer.write(self.metadata.slots, key, value)
        return self.provider.attend(query, layer, self.metadata, parameters)


class RaggedRunner:
    """Runs a model whose attention goes through `attention.interface`."""

    features = frozenset({Feature.CHUNKED_PREFILL, Feature.PREFIX_REUSE})

    def __init__(
        self,
        call: Call,
        layers: tuple[LayerShape, ...],
        shape: ModelShape,
        kit: DeviceKit,
        provider: AttentionProvider,
        adapters: Adapters,
        agree: Agree = int,
    ) -> None:
        self.layers, self.shape, self._adapters, self.agree = layers, shape, adapters, agree
        self.kernels: tuple[Kernel, ...] = ()
        self._call, self._kit, self.provider = call, kit, provider
        self.block_sizes = provider.block_sizes
        self._cache: PagedCache | None = None
        self.block_size = provider.block_sizes[0]
        """Positions per block of the cache in use."""

    def reserve(self, plan: WarmupPlan, shares: tuple[Memory, ...] | None = None) -> Capacity:
        """Allocate the cache and promise limits; see `Enqueued.reserve`. Raises OutOfMemory."""
        block_size = plan.block_size or self.block_sizes[0]
        block_bytes = self._block_bytes(block_size)
        capacity = plan_capacity(plan, self.shape, self._kit, block_size, block_bytes, self.agree, shares)
        num_blocks = capacity.groups[0].num_blocks
        self._cache = self._new_cache(num_blocks, block_size)
        return capacity

    def use_probe_cache(self) -> None:
        """Run over a cache of two blocks, to prove the runner with."""
        self._cache = self._new_cache(2, self.block_sizes[0])

    def _new_cache(self, num_blocks: int, block_size: int) -> PagedCache:
        self.block_size = block_size
        return PagedCache(self.layers, num_blocks, block_size, self.shape.dtype, self._kit.device, self.provider.new_layer)

    def _block_bytes(self, block_size: int) -> int:
        return PagedCache.block_bytes(self.layers, block_size, self.shape.dtype)

    def run(self, works: Sequence[Work]) -> StepLogits:
        """Compute one step."""
        if self._cache is None:
            raise RuntimeError("run before reserve")
        metadata = build(self._adapters.arranged(works), self._cache.block_size, self._kit.device)
        keep = wanted_positions(metadata)
        selected = None if keep.all() else torch.from_numpy(np.flatnonzero(keep)).to(self._kit.device)
        with torch.inference_mode():
            return split_logits(works, metadata, keep, self.forward(metadata, selected))

    def forward(self, step: StepMetadata, keep: Tensor | None) -> Tensor:
        """Logits [kept, vocabulary] of a step; see `Enqueued.forward`."""
        if self._cache is None:
            raise RuntimeError("run before reserve")
        with attending(RaggedStep(self._cache, step, self.provider)), self._adapters.rows(step):
            return self._call(step.input_ids.unsqueeze(0), step.positions.unsqueeze(0), keep)

    def release(self) -> None:
        """Give the cache back."""
        self._cache = None
