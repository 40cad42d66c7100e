"""A decoder step as a function of its input buffer, in parts: what comes before the layers, one layer, and what comes after them.

All layers of a decoder are one graph over other tensors: where each part is a program, a compiler's time and memory for a shape do not grow
with the number of layers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.engine.attention.blocks import BlockStep
from tgi_core.engine.attention.cache import PagedLayer
from tgi_core.engine.compiling.base import Compiled
from tgi_core.engine.decoder.forward import DecoderForward
from tgi_core.engine.decoder.loading import LoadedLayer
from tgi_core.engine.static.buckets import Shape
from tgi_core.engine.static.program_inputs import input_layout

Forward = DecoderForward[BlockStep]


def body_of(shape: Shape, compiled: Callable[[Compiled, str], Compiled]) -> Compiled:
    """A function of (forward, newest tokens, words) that returns the hidden states of a shape; `compiled` makes what runs of each part,
    given the part and its name."""
    layout = input_layout(shape)

    def begin(forward: Forward, newest: Tensor, words: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        inputs = layout.device(words)
        given = inputs.pop("ids")
        inputs["input_ids"] = torch.where(given < 0, newest.index_select(0, (-1 - given).clamp_min(0)), given)
        return inputs, *forward.begin(BlockStep(shape.rows, shape.take, **inputs))

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
        return F.pad(normed, (0, 0, 0, shape.outputs - shape.tokens))

    begin, layer, end = compiled(begin, "begin"), compiled(layer, "layer"), compiled(end, "end")

    def body(forward: Forward, newest: Tensor, words: Tensor) -> Tensor:
        inputs, stream, normed = begin(forward, newest, words)
        step = BlockStep(shape.rows, shape.take, **inputs)
        for each, following, cache in zip(forward.decoder.layers, forward.following_norms(), forward.caches, strict=True):
            stream, normed = layer(forward, each, following, cache, stream, normed, step)
        hidden: Tensor = end(normed)
        return hidden

    return body
