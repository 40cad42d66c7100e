"""The ragged engine: prefill and decode rows of one step, flattened, over a paged cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from torch import Tensor, nn
from transformers import PreTrainedModel

from tgi_core.backend import Feature, Request
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.attention.cache import LayerShape, PagedCache
from tgi_core.engine.attention.indexing import indexed_rows
from tgi_core.engine.attention.interface import AttentionParameters, IndexedRows, use_attention
from tgi_core.engine.attention.metadata import StepMetadata, see_prompts
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.comparison import Agree
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.lora.adapters import Adapters
from tgi_core.engine.models.calling import ModelCall
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.paged_runner import PagedRunner
from tgi_core.engine.runner import PromptImages


class RaggedStep:
    """Computes the attention calls of one step, layer by layer."""

    __slots__ = ("cache", "layer", "metadata", "provider")

    def __init__(self, cache: PagedCache, metadata: StepMetadata, provider: AttentionProvider) -> None:
        self.cache, self.metadata, self.provider = cache, metadata, provider
        self.layer = 0

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, parameters: AttentionParameters) -> Tensor:
        """Write the layer's keys and values, then attend; see `AttentionImpl`."""
        layer, metadata = self.cache.layers[self.layer], self.metadata
        if metadata.windowed is not None and self.cache.windowed[self.layer]:
            metadata = metadata.windowed
        self.layer += 1
        if metadata.begun is not None:
            layer.zero_blocks(metadata.begun)
        layer.write(metadata.slots, key, value)
        return self.provider.attend(query, layer, metadata, parameters)

    def indexed(self) -> list[IndexedRows]:
        """See `AttentionImpl.indexed`."""
        layer = self.cache.layers[self.layer]
        self.layer += 1
        return indexed_rows(layer, self.metadata)


class RaggedRunner(PagedRunner):
    """Runs a model whose attention goes through `attention.interface`."""

    def __init__(
        self,
        call: ModelCall,
        layers: tuple[LayerShape, ...],
        shape: ModelShape,
        kit: DeviceKit,
        provider: AttentionProvider,
        adapters: Adapters,
        agree: Agree = int,
    ) -> None:
        super().__init__(layers, shape, kit, provider, agree)
        self._call, self._adapters = call, adapters
        self.whole_prompts = call.whole_prompts
        self.images: PromptImages | None = None
        """What requests with images need; None: there can be none."""
        self.whole_images = False
        """See `Capabilities`."""

    @property
    def model(self) -> PreTrainedModel:
        """The model that it runs."""
        return self._call.model

    @property
    def embedding(self) -> Tensor:
        """See `KeepsTokens`."""
        return self.model.get_input_embeddings().get_parameter("weight")

    def admit_images(self, request: Request) -> None:
        """See `TakesImages`."""
        if self.images is not None:
            self.images.admit(request)

    def check_images(self, request: Request, end: int) -> None:
        """See `TakesImages`."""
        if self.images is not None:
            self.images.check(request, end)

    def encode_image(self, item: bytes) -> None:
        """See `TakesImages`."""
        if self.images is not None:
            self.images.encode(item)

    def undisturbed(self) -> AbstractContextManager[None]:
        """See `TakesImages`."""
        return nullcontext() if self.images is None else self.images.undisturbed()

    def refuse_images(self) -> None:
        """See `TakesImages`."""
        self.images, self.whole_images = None, False
        self.shape, self.drafts_refusal = replace(self.shape, image_bytes=0), ""
        self.features -= {Feature.MEDIA}

    def forward(self, step: StepMetadata, keep: Tensor | None) -> Tensor:
        """Logits [kept, vocabulary] of a step; see `Enqueued.forward`."""
        return self._run(step, keep, self._call)

    def hidden(self, step: StepMetadata, keep: Tensor | None) -> Tensor:
        """The output head's input for the flat tokens `keep`, or for all."""
        return self._run(step, keep, self._call.hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [tokens, vocabulary]."""
        return self._call.logits(hidden)

    def _run(self, step: StepMetadata, keep: Tensor | None, run: Callable[[Tensor, Tensor, Tensor | None], Tensor]) -> Tensor:
        images = nullcontext() if self.images is None else self.images.rows(step)
        positions = None if self.images is None else self.images.positions(step)
        if positions is None:
            positions = step.positions.unsqueeze(0)
        if self.whole_prompts:
            see_prompts(step)
        with use_attention(RaggedStep(self._cache_in_use(), step, self.provider)), self._adapters.rows(step), images:
            return run(step.input_ids.unsqueeze(0), positions, keep)

    def _arranged(self, row_inputs: Sequence[RowInput]) -> Sequence[RowInput]:
        return self._adapters.arranged(row_inputs)
