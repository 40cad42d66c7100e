"""The base of runners over a paged cache: the cache, its limits, and a step from works to logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tgi_core.backend import Capacity, Feature, Kernel, Memory, WarmupPlan
from tgi_core.backend.ledger import Work
from tgi_core.engine.attention.cache import LayerShape, PagedCache
from tgi_core.engine.attention.metadata import StepMetadata, build
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.logits_selection import split_logits, wanted_positions
from tgi_core.engine.memory import Agree, plan_capacity
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.runner import StepLogits


class PagedRunner(ABC):
    """Runs flat steps over a paged cache. `forward` never synchronizes with the device, so it can run ahead and be captured."""

    features = frozenset({Feature.CHUNKED_PREFILL, Feature.PREFIX_REUSE})
    kernels: tuple[Kernel, ...] = ()

    def __init__(
        self,
        layers: tuple[LayerShape, ...],
        shape: ModelShape,
        kit: DeviceKit,
        provider: AttentionProvider,
        agree: Agree = int,
    ) -> None:
        self.layers, self.shape, self.provider, self.agree = layers, shape, provider, agree
        self.block_sizes = provider.block_sizes
        self.block_size = self.block_sizes[0]
        """Positions per block of the cache in use."""
        self.cache_dtype = "auto" if kit.fp8_cache is None else kit.fp8_cache.name
        self._stored_dtype = shape.dtype if kit.fp8_cache is None else kit.fp8_cache.dtype
        self._kit = kit
        self.cache: PagedCache | None = None

    @abstractmethod
    def forward(self, step: StepMetadata, keep: Tensor | None) -> Tensor:
        """Logits [kept, vocabulary] of a step's flat tokens `keep`, or of all; see `Enqueued.forward`."""

    def reserve(self, plan: WarmupPlan, shares: tuple[Memory, ...] | None = None) -> Capacity:
        """Allocate the cache and promise limits; see `Enqueued.reserve`. Raises OutOfMemory."""
        capacity = self.promise(plan, shares)
        self.allocate(capacity)
        return capacity

    def allocate(self, capacity: Capacity) -> None:
        """Allocate the cache of a promise."""
        self._use_cache(capacity.groups[0].num_blocks, capacity.groups[0].block_size)

    def promise(self, plan: WarmupPlan, shares: tuple[Memory, ...] | None = None) -> Capacity:
        """The limits that `reserve` would promise now. Raises OutOfMemory."""
        block_size = plan.block_size or self.block_sizes[0]
        block_bytes = PagedCache.block_bytes(self.layers, block_size, self._stored_dtype)
        return plan_capacity(plan, self.shape, self._kit, block_size, block_bytes, self.agree, shares)

    def use_probe_cache(self) -> None:
        """Use a cache of two blocks, for the self-check."""
        self._use_cache(2, self.block_sizes[0])

    def run(self, works: Sequence[Work]) -> StepLogits:
        """Compute one step."""
        step = build(self._arranged(works), self.block_size, self._kit.device)
        keep = wanted_positions(step)
        selected = None if keep.all() else torch.from_numpy(np.flatnonzero(keep)).to(self._kit.device)
        with torch.inference_mode():
            return split_logits(works, step, keep, self.forward(step, selected))

    def release(self) -> None:
        """Free the cache."""
        self.cache = None

    def _use_cache(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        new_layer, device = self.provider.new_layer, self._kit.device
        self.cache = PagedCache(self.layers, num_blocks, block_size, self._stored_dtype, device, new_layer)

    def _arranged(self, works: Sequence[Work]) -> Sequence[Work]:
        """The works in the order in which the model runs them."""
        return works

    def _cache_in_use(self) -> PagedCache:
        if self.cache is None:
            raise RuntimeError("run before reserve")
        return self.cache
