"""A program of a whole step, compiled in parts: what comes before the layers, one layer, and what comes after them.

All layers of a decoder are one graph over other tensors, so that a compiler's time and memory for a shape do not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from tgi_core.engine.attention.cache import PagedLayer
from tgi_core.engine.decoder.forward import DecoderForward
from tgi_core.engine.decoder.loading import LoadedLayer
from tgi_core.engine.static.attention import BlockStep

Forward = DecoderForward[BlockStep]
Compiled = Callable[..., Any]
Prepare = Callable[[Tensor, Tensor], Mapping[str, Tensor]]
"""The tensors of a `BlockStep` by name, given the newest tokens and the words."""


def by_layer(rows: int, take: int, outputs: int, prepare: Prepare, compiled: Callable[[Compiled, str], Compiled]) -> Compiled:
    """A function of (forward, newest tokens, words) that returns `outputs` hidden states, of three parts made by `compiled`."""

    def begin(forward: Forward, newest: Tensor, words: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        inputs = dict(prepare(newest, words))
        return inputs, *forward.begin(BlockStep(rows, take, **inputs))

    def layer(
        forward: Forward,
        given: LoadedLayer,
        following: Tensor,
        cache: PagedLayer,
        stream: Tensor,
        normed: Tensor,
        step: BlockStep,
    ) -> tuple[Tensor, Tensor]:
        return forward.layer(given, following, cache, stream.clone(), normed, step, None)  # a copy: only caches are written to

    def end(normed: Tensor) -> Tensor:
        return F.pad(normed, (0, 0, 0, outputs - rows * take))

    begin, layer, end = compiled(begin, "begin"), compiled(layer, "layer"), compiled(end, "end")

    def body(forward: Forward, newest: Tensor, words: Tensor) -> Tensor:
        inputs, stream, normed = begin(forward, newest, words)
        step = BlockStep(rows, take, **inputs)
        for each, following, cache in zip(forward.decoder.layers, forward.following_norms(), forward.caches, strict=True):
            stream, normed = layer(forward, each, following, cache, stream, normed, step)
        hidden: Tensor = end(normed)
        return hidden

    return body
