"""EAGLE-3: the first draft token comes from hidden states between layers of the target model, the others from its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor

from tgi_core.engine.attention.cache import SPARE_BLOCKS, PagedCache
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.attention.provider import AttentionLayer, AttentionProvider
from tgi_core.engine.decoder.loading import attention_layers
from tgi_core.engine.device import DeviceKit, attention_refusal
from tgi_core.engine.memory import CacheBeside
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.quantization.linear import Linears
from tgi_core.engine.selection import first_supported
from tgi_core.engine.speculators.cached import unshared_blocks
from tgi_core.engine.speculators.chained import ChainedSpeculator
from tgi_core.engine.speculators.eagle3_files import STATES, Eagle3Config, Eagle3Tensors
from tgi_core.engine.speculators.eagle3_layers import Eagle3Layers
from tgi_core.engine.speculators.files import MOST, SpeculatorConfig


@runtime_checkable
class KeepsLayers(Protocol):
    """A runner over a paged cache that can keep the hidden states between its layers. `beside` is another model's cache with the same
    blocks as this one's."""

    block_sizes: tuple[int, ...]
    beside: CacheBeside | None

    @property
    def num_layers(self) -> int:
        """Number of its layers."""

    @property
    def embedding(self) -> Tensor:
        """The embeddings of its tokens [vocabulary, hidden]."""

    def keep_layers(self, layers: Sequence[int]) -> None:
        """Return the hidden states before these layers with each step from now on, in `StepLogits.layers`."""


def open_eagle3(
    directory: Path, runner: KeepsLayers, shape: ModelShape, kit: DeviceKit, config: SpeculatorConfig
) -> Eagle3Speculator | str:
    """The speculator in a directory for the model of `runner`, or why it cannot run. Raises InvalidModel."""
    read = Eagle3Config.read(config, shape, runner.num_layers)
    asked = attention_layers(read.table)
    provider, rejected = first_supported(kit.attention(), lambda each: attention_refusal(each, asked, shape.dtype, kit))
    if provider is None:
        return f"no attention for EAGLE-3: {'; '.join(rejected)}"
    if refused := unshared_blocks("EAGLE-3", provider.block_sizes, runner.block_sizes):
        return refused
    tensors = Eagle3Tensors(directory, read, shape)
    layers = Eagle3Layers(read, tensors, runner.embedding, Linears(kit.linears(), kit.device), provider)
    speculator = Eagle3Speculator(layers, asked[0], provider, kit, shape)
    runner.keep_layers(read.states)
    runner.beside = speculator
    return speculator


class Eagle3Speculator(ChainedSpeculator):
    """See `ChainedSpeculator`."""

    name = "eagle3"

    def __init__(
        self, layers: Eagle3Layers, layer: AttentionLayer, provider: AttentionProvider, kit: DeviceKit, shape: ModelShape
    ) -> None:
        super().__init__(shape.max_positions + MOST, layers.num_bytes, kit.device)
        self._layers, self._layer, self._provider, self._kit, self._shape = layers, layer, provider, kit, shape
        self._stored_dtype = shape.dtype if kit.kv_cache_dtype is None else kit.kv_cache_dtype.dtype
        self._cache: PagedCache | None = None

    def block_bytes(self, block_size: int) -> int:
        """See `CacheBeside`."""
        return PagedCache.block_bytes((self._layer.shape,), block_size, self._stored_dtype)

    def spare_bytes(self, rows: int, draft: int, step_tokens: int, block_size: int) -> int:
        """See `CacheBeside`: the reserve, and the hidden states of a step."""
        states = step_tokens * STATES * self._shape.hidden_size * self._shape.dtype.itemsize
        unused = SPARE_BLOCKS * self.block_bytes(block_size)
        return super().spare_bytes(rows, draft, step_tokens, block_size) + states + unused

    def use_cache(self, num_blocks: int, block_size: int) -> None:
        """See `CachedSpeculator.use_cache`."""
        sizes = (num_blocks, block_size, self._stored_dtype, self._kit.device)
        self._cache = PagedCache((self._layer.shape,), *sizes, self._provider.new_layer)

    def release(self) -> None:
        """See `Speculator.release`."""
        self._cache = None

    def combined(self, states: Tensor) -> Tensor:
        """See `ChainedSpeculator.combined`."""
        return self._layers.combined(states)

    def run_layers(self, hidden: Tensor, step: StepMetadata, keep: Tensor) -> tuple[Tensor, Tensor]:
        """See `ChainedSpeculator.run_layers`."""
        return self._layers(hidden, step, self._cache_in_use().layers[0], keep)

    def _cache_in_use(self) -> PagedCache:
        if self._cache is None:
            raise RuntimeError("run before reserve")
        return self._cache
