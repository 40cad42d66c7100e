"""A runner of decoder tables on any device that torch knows: products by torch, attention by a provider, the rest by `Operators`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from tgi_core.backend import Capacity, Feature, Kernel, Memory, Progress, WarmupPlan
from tgi_core.backend.ledger import Work
from tgi_core.engine.attention.cache import PagedCache
from tgi_core.engine.attention.checking import AskedLayer
from tgi_core.engine.attention.metadata import StepMetadata, build
from tgi_core.engine.decoder.forward import DecoderForward
from tgi_core.engine.decoder.loading import LoadedDecoder, attention_layers, load_decoder
from tgi_core.engine.decoder.operators import Operators
from tgi_core.engine.decoder.unfit import NotInFamily
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device import AttentionProvider, DeviceKit
from tgi_core.engine.kept import split_logits, wanted_positions
from tgi_core.engine.memory import plan_capacity
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.runner import StepLogits


class PagedDecoderRunner:
    """Runs a decoder from its table; see `TableRunner`. `forward` asks the device for nothing, so that it can be captured."""

    features = frozenset({Feature.CHUNKED_PREFILL, Feature.PREFIX_REUSE})

    def __init__(self, kit: DeviceKit, weights: DecoderWeights, operators: Sequence[Operators], progress: Progress) -> None:
        """Load the weights; the first of `operators` and of the kit's attention that serve them are used. Raises NotInFamily."""
        table, dtype = weights.table, weights.dtype
        layers = attention_layers(table)
        self.operators, why = _choose_operators(operators, dtype)
        self.provider, why_attention = _choose_attention(kit.attention(), layers, dtype, kit.device)
        self.decoder: LoadedDecoder = load_decoder(weights, kit.device, progress)
        self._kit, self._shapes = kit, tuple(layer.shape for layer in layers)
        self.block_sizes = self.provider.block_sizes
        self.block_size = self.block_sizes[0]
        """Positions per block of the cache in use."""
        self.shape = ModelShape(dtype, table.vocab_size, table.max_positions, table.hidden, table.intermediate, weights.num_bytes)
        self.kernels = (
            Kernel("step", "table", f"{table.model_type} is of the decoder family"),
            Kernel("operators", self.operators.name, why),
            Kernel("attention", self.provider.name, why_attention),
        )
        self.agree: Callable[[int], int] = int  # it runs on one rank
        self._cache: PagedCache | None = None

    def reserve(self, plan: WarmupPlan, shares: tuple[Memory, ...] | None = None) -> Capacity:
        """Allocate the cache and promise limits; see `Enqueued.reserve`. Raises OutOfMemory."""
        block_size = plan.block_size or self.block_sizes[0]
        block_bytes = PagedCache.block_bytes(self._shapes, block_size, self.shape.dtype)
        capacity = plan_capacity(plan, self.shape, self._kit, block_size, block_bytes, self.agree, shares)
        self._use_cache(capacity.groups[0].num_blocks, block_size)
        return capacity

    def use_probe_cache(self) -> None:
        """Run over a cache of two blocks, to prove the runner with."""
        self._use_cache(2, self.block_sizes[0])

    def _use_cache(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        new_layer, device = self.provider.new_layer, self._kit.device
        self._cache = PagedCache(self._shapes, num_blocks, block_size, self.shape.dtype, device, new_layer)

    def _cache_in_use(self) -> PagedCache:
        if self._cache is None:
            raise RuntimeError("run before reserve")
        return self._cache

    def run(self, works: Sequence[Work]) -> StepLogits:
        """Compute one step."""
        step = build(works, self.block_size, self._kit.device)
        keep = wanted_positions(step)
        selected = None if keep.all() else torch.from_numpy(np.flatnonzero(keep)).to(self._kit.device)
        with torch.inference_mode():
            return split_logits(works, step, keep, self.forward(step, selected))

    def forward(self, step: StepMetadata, keep: Tensor | None) -> Tensor:
        """Logits [kept, vocabulary] of a step's flat tokens `keep`, or of all; see `DecoderForward`."""
        return DecoderForward(self.decoder, self.operators, self.provider, self._cache_in_use().layers)(step, keep)

    def release(self) -> None:
        """Give the cache back."""
        self._cache = None


def _choose_operators(choices: Sequence[Operators], dtype: torch.dtype) -> tuple[Operators, str]:
    """The first that serves the dtype, and why not those before it. Raises NotInFamily."""
    rejected: list[str] = []
    for operators in choices:
        reason = operators.refusal(dtype)
        if not reason:
            return operators, "; ".join(rejected)
        rejected.append(f"not {operators.name}: {reason}")
    raise NotInFamily("no operators: " + "; ".join(rejected))


def _choose_attention(
    providers: Sequence[AttentionProvider], layers: Sequence[AskedLayer], dtype: torch.dtype, device: torch.device
) -> tuple[AttentionProvider, str]:
    """The first that serves the layers, and why not those before it. Raises NotInFamily."""
    shapes, asked = [layer.shape for layer in layers], [layer.parameters for layer in layers]
    rejected: list[str] = []
    for provider in providers:
        reason = provider.probe() or provider.refusal(shapes, asked, dtype) or provider.self_check(layers, dtype, device)
        if not reason:
            return provider, "; ".join(rejected)
        rejected.append(f"not {provider.name}: {reason}")
    raise NotInFamily("no attention: " + "; ".join(rejected))
