"""Reads how a model scores keys, from one token that it runs after as many positions as a row can have."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tgi_core.engine.attention.interface import AttentionParameters, KeyBias, NotRagged, active_attention
from tgi_core.engine.models.build import UNLIMITED_POSITIONS, max_positions
from tgi_core.engine.models.cache_names import cache_name
from tgi_core.engine.models.tracing.cache import TracedCache
from tgi_core.engine.models.tracing.tensors import HIDDEN, LayerCall, Scored

_TOLERANCE = 2e-3
"""How much biases may differ, relative to the largest one near them: they may be rounded to bfloat16."""


class TracedAttention:
    """How each layer of a model scores keys, in call order; makes the caches of its steps."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Runs the model, with its own masks. Raises NotRagged, and what the model raises."""
        self.name = cache_name(model)
        if not self.name:
            raise NotRagged("it takes no cache of transformers' kind")
        positions = max_positions(model.config) or UNLIMITED_POSITIONS
        read = [_read(model, self.name, count) for count in (positions, positions // 2 + 1)]
        if not read[0] or len(read[0]) != len(read[1]):
            raise NotRagged("its attention does not go through its cache")
        kept: list[KeyBias] = []
        self._parameters = [_parameters(last, halfway, kept) for last, halfway in zip(*read, strict=True)]
        self._model = model

    def arguments(self) -> dict[str, Any]:
        """The arguments with which the model runs a step."""
        return {self.name: TracedCache(self._attend), "use_cache": True}

    def _attend(self, layer: int, call: LayerCall, scored: Scored) -> Tensor:
        return active_attention().attend(self._model, scored.query, call.key[0], call.value[0], self._parameters[layer])


def _read(model: PreTrainedModel, name: str, positions: int) -> list[Scored]:
    """The scores of each layer for the last of so many positions."""
    found: list[Scored] = []

    def attend(layer: int, call: LayerCall, scored: Scored) -> Tensor:
        found.append(scored)
        heads = scored.query.shape[0]
        return call.value[0].transpose(0, 1).repeat_interleave(heads // call.value.shape[1], 1)

    last = torch.tensor([[positions - 1]], device=model.device)
    arguments = {
        "input_ids": torch.ones_like(last),
        "position_ids": last,
        "cache_position": last[0],
        "use_cache": True,
        name: TracedCache(attend, positions - 1),
    }
    takes = inspect.signature(model.forward).parameters
    with torch.inference_mode():
        model(**{key: value for key, value in arguments.items() if key in takes})
    return found


def _parameters(scored: Scored, halfway: Scored, kept: list[KeyBias]) -> AttentionParameters:
    """Of a layer, from two queries: one that sees all positions of the longest row, one that sees about half of them. Equal biases are
    one object, of those `kept`. Raises NotRagged."""
    if scored.bias is None or halfway.bias is None:
        return AttentionParameters(scored.scale)
    window, bias = _visible(scored.bias)
    half_window, half_bias = _visible(halfway.bias)
    keys = half_bias.shape[1]
    if half_window != (None if window is None or window >= keys else window):
        raise NotRagged("its layers hide positions in a way of their own")
    if window is not None:
        if bias.any():
            raise NotRagged("its layers have a window and a bias")
        return AttentionParameters(scored.scale, window)
    if not _agree(bias[:, :keys], half_bias):
        raise NotRagged("its biases depend on more than the position of a key")
    if not bias.any():
        return AttentionParameters(scored.scale)
    table = (bias - bias[:, :1]).expand(scored.query.shape[0], -1).contiguous()
    same = next((each for each in kept if torch.equal(each.table, table)), None)
    if same is None:
        same = KeyBias.of(table)
        kept.append(same)
    return AttentionParameters(scored.scale, bias=same)


def _visible(bias: Tensor) -> tuple[int | None, Tensor]:
    """The window of the last query, None if it sees all positions, and the bias with zeros outside it. Raises NotRagged."""
    seen = bias > HIDDEN
    count = int(seen[0].sum())
    if not (seen == seen[:1]).all() or not count or not seen[0, -count:].all():
        raise NotRagged("its layers hide positions in a way of their own")
    return None if count == bias.shape[1] else count, torch.where(seen, bias, 0.0)


def _agree(left: Tensor, right: Tensor) -> bool:
    """Whether biases [heads, keys] are the same but for a constant per head, which changes no softmax."""
    left, right = left - left[:, :1], right - right[:, :1]
    return bool(((left - right).abs() <= _TOLERANCE * torch.maximum(left.abs(), right.abs()) + 1e-6).all())
