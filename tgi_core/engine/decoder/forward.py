"""A decoder's forward pass over the flat tokens of a step: nine kernels a layer where the operations are fused.

It is a function of tensors on the device: it asks the device for nothing, and its shapes follow from those of its arguments. With
arguments of fixed shape, rows of length 0 and slots of −1 for what pads them, it can be captured as a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch.nn.functional as F
from torch import Tensor

from tgi_core.engine.attention.cache import PagedLayer
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.decoder.loading import LoadedDecoder, LoadedLayer
from tgi_core.engine.decoder.operators import Operators

StepT = TypeVar("StepT")
"""What attention must know of a step: `StepMetadata`, or `StepArrays` alone where a provider needs no more."""

Attend = Callable[[Tensor, PagedLayer, StepT, AttentionParameters], Tensor]
"""query [heads, tokens, width] over what lies in a layer's cache → [tokens, heads, width]; see `AttentionProvider.attend`."""


@dataclass(frozen=True, slots=True)
class DecoderForward(Generic[StepT]):
    """A decoder with its operations, its attention and one cache per layer."""

    decoder: LoadedDecoder
    operators: Operators
    attend: Attend[StepT]
    caches: Sequence[PagedLayer]

    def __call__(self, ids: Tensor, positions: Tensor, slots: Tensor, step: StepT, keep: Tensor | None) -> Tensor:
        """ids, positions and slots [tokens], `keep` [kept] of flat tokens or None for all → logits [kept, vocabulary].

        A token of slot −1 is not written to the cache.
        """
        decoder, table, run = self.decoder, self.decoder.table, self.operators
        stream = F.embedding(ids, decoder.embedding)
        if table.embedding_scale != 1:
            stream = stream * table.embedding_scale
        normed = run.norm(stream, decoder.layers[0].attention_norm, table.epsilon)
        following = [layer.attention_norm for layer in decoder.layers[1:]]
        for layer, cache, weight in zip(decoder.layers, self.caches, [*following, decoder.final_norm], strict=True):
            branch = self._attention(layer, cache, normed, positions, slots, step)
            normed = run.join_and_norm(stream, branch, table.residual_scale, layer.mlp_norm, table.epsilon)
            branch = layer.down(run.silu_mul(layer.gate_up(normed)))
            if weight is decoder.final_norm and keep is not None:
                stream, branch = stream.index_select(0, keep), branch.index_select(0, keep)
            normed = run.join_and_norm(stream, branch, table.residual_scale, weight, table.epsilon)
        logits = F.linear(normed, decoder.head)
        return logits if table.logit_scale == 1 else logits * table.logit_scale

    def _attention(
        self, layer: LoadedLayer, cache: PagedLayer, normed: Tensor, positions: Tensor, slots: Tensor, step: StepT
    ) -> Tensor:
        decoder = self.decoder
        turns = decoder.turns if layer.turned else None
        query = self.operators.store(layer.qkv(normed), positions, slots, decoder.sizes, turns, layer.head_norms, cache)
        return layer.output(self.attend(query, cache, step, layer.attention).flatten(1))
