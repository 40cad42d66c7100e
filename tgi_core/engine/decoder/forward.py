"""A decoder's forward pass over the flat tokens of a step: with fused operators nine kernels per layer, eleven with experts.

It is a function of tensors on the device: it never synchronizes, and its shapes follow from those of the step. A step of fixed shape,
padded with rows of length 0 and slots of −1, can be captured as a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch.nn.functional as F
from torch import Tensor

from tgi_core.engine.attention.cache import PagedLayer
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import FlatTokens
from tgi_core.engine.decoder.loading import LoadedDecoder, LoadedExperts, LoadedLayer
from tgi_core.engine.decoder.operators import LatentHeads, Operators

Step = TypeVar("Step", bound=FlatTokens)
Given = TypeVar("Given", bound=FlatTokens, contravariant=True)


class StepAttention(Protocol[Given]):
    """The part of an `AttentionProvider` that runs in a step, for one form of step metadata."""

    def attend(self, query: Tensor, cache: PagedLayer, step: Given, parameters: AttentionParameters) -> Tensor:
        """See `AttentionProvider.attend`."""


@dataclass(frozen=True, slots=True)
class DecoderForward(Generic[Step]):
    """A decoder with its operators, its attention and one cache per layer."""

    decoder: LoadedDecoder
    operators: Operators
    provider: StepAttention[Step]
    caches: Sequence[PagedLayer]

    def __call__(self, step: Step, keep: Tensor | None) -> Tensor:
        """Logits [kept, vocabulary] of the flat tokens `keep` [kept], or of all. A token of slot −1 is not written to the cache."""
        return self.logits(self.hidden(step, keep))

    def hidden(self, step: Step, keep: Tensor | None) -> Tensor:
        """The input of `logits`, [kept, hidden]: the first of two parts, for devices that compile them separately."""
        stream, normed = self.begin(step)
        layers = self.decoder.layers
        for layer, following, cache in zip(layers, self.following_norms(), self.caches, strict=True):
            stream, normed = self.layer(layer, following, cache, stream, normed, step, keep if layer is layers[-1] else None)
        return normed

    def begin(self, step: Step) -> tuple[Tensor, Tensor]:
        """The residual stream [tokens, hidden] before the first layer, and its norm."""
        decoder, table = self.decoder, self.decoder.table
        stream = F.embedding(step.input_ids, decoder.embedding)
        if table.embedding_scale != 1:
            stream = stream * table.embedding_scale
        return stream, self.operators.norm(stream, decoder.layers[0].attention_norm, table.epsilon)

    def following_norms(self) -> list[Tensor]:
        """By layer, the weights of the norm that follows it."""
        return [*(layer.attention_norm for layer in self.decoder.layers[1:]), self.decoder.final_norm]

    def layer(
        self,
        layer: LoadedLayer,
        following: Tensor,
        cache: PagedLayer,
        stream: Tensor,
        normed: Tensor,
        step: Step,
        keep: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The stream after a layer, which may be the same tensor, and its norm by the weights `following`: of the tokens `keep`, or of all.
        The same function for every layer, for devices that compile one at a time."""
        table, run = self.decoder.table, self.operators
        branch = self._attention(layer, cache, normed, step)
        normed = run.add_and_norm(stream, branch, table.residual_scale, layer.mlp_norm, table.epsilon)
        branch = self._mlp(layer, normed)
        if keep is not None:
            stream, branch = stream.index_select(0, keep), branch.index_select(0, keep)
        return stream, run.add_and_norm(stream, branch, table.residual_scale, following, table.epsilon)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [tokens, vocabulary] of hidden states [tokens, hidden]."""
        logits, scale = self.decoder.head(hidden), self.decoder.table.logit_scale
        return logits if scale == 1 else logits * scale

    def _mlp(self, layer: LoadedLayer, normed: Tensor) -> Tensor:
        """[tokens, hidden], or with experts [tokens, experts, hidden], which the next norm sums."""
        run, mlp = self.operators, layer.mlp
        if isinstance(mlp, LoadedExperts):
            logits = run.wide_linear(normed, mlp.router) if isinstance(mlp.router, Tensor) else mlp.router(normed)
            return run.experts(normed, run.route(logits, mlp.routing, mlp.correction), mlp.experts)
        return mlp.down(run.silu_mul(mlp.gate_up(normed)))

    def _attention(self, layer: LoadedLayer, cache: PagedLayer, normed: Tensor, step: Step) -> Tensor:
        if step.begun is not None:
            cache.zero_blocks(step.begun)
        run, heads, projected = self.operators, layer.heads, layer.qkv(normed)
        if isinstance(heads, LatentHeads):
            query, expanded = run.expand_latents(projected, heads)
            query = run.latent_rope_and_cache(query, expanded, projected, step.positions, step.slots, heads, cache)
        else:
            query = run.rope_and_cache(projected, step.positions, step.slots, heads, cache)
        return layer.output(self.provider.attend(query, cache, step, layer.attention).flatten(1))
