"""A decoder's forward pass over the flat tokens of a step: nine kernels per layer with fused operators.

It is a function of tensors on the device: it never synchronizes, and its shapes follow from those of the step. A step of fixed shape,
padded with rows of length 0 and slots of −1, can be captured as a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from tgi_core.engine.attention.cache import PagedLayer
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.decoder.loading import LoadedDecoder, LoadedLayer
from tgi_core.engine.decoder.operators import Operators


@dataclass(frozen=True, slots=True)
class DecoderForward:
    """A decoder with its operators, its attention and one cache per layer."""

    decoder: LoadedDecoder
    operators: Operators
    provider: AttentionProvider
    caches: Sequence[PagedLayer]

    def __call__(self, step: StepMetadata, keep: Tensor | None) -> Tensor:
        """Logits [kept, vocabulary] of the flat tokens `keep` [kept], or of all. A token of slot −1 is not written to the cache."""
        decoder, table, run = self.decoder, self.decoder.table, self.operators
        stream = F.embedding(step.input_ids, decoder.embedding)
        if table.embedding_scale != 1:
            stream = stream * table.embedding_scale
        normed = run.norm(stream, decoder.layers[0].attention_norm, table.epsilon)
        last = len(decoder.layers) - 1
        for index, (layer, cache) in enumerate(zip(decoder.layers, self.caches, strict=True)):
            branch = self._attention(layer, cache, normed, step)
            normed = run.add_and_norm(stream, branch, table.residual_scale, layer.mlp_norm, table.epsilon)
            branch = layer.down(run.silu_mul(layer.gate_up(normed)))
            if index == last and keep is not None:
                stream, branch = stream.index_select(0, keep), branch.index_select(0, keep)
            following = decoder.final_norm if index == last else decoder.layers[index + 1].attention_norm
            normed = run.add_and_norm(stream, branch, table.residual_scale, following, table.epsilon)
        logits = decoder.head(normed)
        return logits if table.logit_scale == 1 else logits * table.logit_scale

    def _attention(self, layer: LoadedLayer, cache: PagedLayer, normed: Tensor, step: StepMetadata) -> Tensor:
        if step.begun is not None:
            cache.zero_blocks(step.begun)
        query = self.operators.rope_and_cache(layer.qkv(normed), step.positions, step.slots, layer.heads, cache)
        return layer.output(self.provider.attend(query, cache, step, layer.attention).flatten(1))
