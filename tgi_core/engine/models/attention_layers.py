"""Finds the shapes and parameters of a model's attention layers by running it once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from tgi_core.engine.attention.cache import CacheScales, LayerShape
from tgi_core.engine.attention.interface import (
    INDEXED,
    NAME,
    TRACED,
    AttentionParameters,
    IndexedRows,
    NotRagged,
    register,
    use_attention,
)
from tgi_core.engine.attention.provider import AttentionLayer
from tgi_core.engine.comparison import MODEL_ERRORS, Agree
from tgi_core.engine.models.build import text_config
from tgi_core.engine.models.calling import PLAIN, Convention, ModelCall
from tgi_core.engine.models.indexers import Indexes
from tgi_core.engine.models.loading import language_model
from tgi_core.engine.models.output_head import OutputHead, runs_apart
from tgi_core.engine.models.states.finding import StateLayers, find_state_layers
from tgi_core.engine.models.tracing.reading import TracedAttention

PROBED = 2
"""Tokens over which a model is watched."""


class ShapeRecorder:
    """Computes causal attention over a call's own tokens, and records shapes and parameters."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.shapes: list[LayerShape] = []
        self.asked: list[AttentionParameters] = []
        self.heads: list[int] = []
        self._numbers: list[int | None] = []

    @property
    def layers(self) -> list[AttentionLayer]:
        """The layers in call order."""
        return [AttentionLayer(*layer) for layer in zip(self.shapes, self.heads, self.asked, strict=True)]

    def use_scales(self, scales: Mapping[int, CacheScales]) -> None:
        """Give the layers a checkpoint's scales of an 8-bit cache, by the number that a layer has there."""
        numbered = zip(self.shapes, self._numbers, strict=True)
        self.shapes = [
            shape if number is None else replace(shape, scales=scales.get(number, CacheScales())) for shape, number in numbered
        ]

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, parameters: AttentionParameters) -> Tensor:
        """Attention of one layer; see `AttentionImpl`."""
        if query.shape[0] % key.shape[0] or key.shape[:2] != value.shape[:2] or query.shape[1] != key.shape[1]:
            raise NotRagged("keys of another length than the queries")
        self.shapes.append(LayerShape(key.shape[0], key.shape[2], value.shape[2], parameters.span))
        self.asked.append(parameters)
        self.heads.append(query.shape[0])
        number = getattr(module, "layer_idx", None)
        self._numbers.append(number if isinstance(number, int) else sum(each is not None for each in self._numbers))
        group = query.shape[0] // key.shape[0]
        keys, values = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
        return F.scaled_dot_product_attention(query, keys, values, is_causal=True, scale=parameters.scaling).transpose(0, 1)

    def indexed(self) -> list[IndexedRows]:
        """An index over the call's own tokens, of which there are `PROBED`."""

        def update(keys: Tensor) -> Tensor:
            self.shapes.append(LayerShape(1, keys.shape[-1], 0))
            self.asked.append(AttentionParameters(1.0))
            self.heads.append(1)
            self._numbers.append(None)
            return keys

        visible = torch.ones(1, PROBED, PROBED, dtype=torch.bool, device=self._device).tril()
        return [IndexedRows(0, PROBED, False, visible, update)]


def use_ragged_attention(
    model: PreTrainedModel, agree: Agree = int, convention: Convention = PLAIN
) -> tuple[ModelCall, ShapeRecorder]:
    """Route a model's attention to this engine. Returns how to call it, and its layers in call order. Raises NotRagged, and what the model
    raises."""
    register()
    states, decoder = find_state_layers(model), language_model(model)
    if states is None and getattr(model, "_is_stateful", False):
        raise NotRagged("it keeps state besides keys and values")
    try:
        by_index = getattr(text_config(model.config), "index_topk", None)
        call, seen = _by_index(model, convention) if by_index else _through_interface(model, states, convention)
    except MODEL_ERRORS as error:
        if states is not None or by_index or convention.whole_prompts:
            raise
        try:
            call, seen = _traced(model, convention)
        except MODEL_ERRORS as other:
            ours = isinstance(other, NotRagged) and not getattr(decoder, "_supports_attention_backend", False)
            raise (other if ours else error) from None
    _separate_head(model, call, agree)
    return call, seen


def _through_interface(
    model: PreTrainedModel, states: StateLayers | None, convention: Convention
) -> tuple[ModelCall, ShapeRecorder]:
    """A model that calls transformers' attention interface."""
    decoder = language_model(model)
    if (
        states is None
        and not getattr(decoder, "_supports_attention_backend", False)
        and not decoder._can_set_attn_implementation()
    ):
        raise NotRagged("its attention does not go through transformers' attention interface")
    decoder.set_attn_implementation(NAME)
    if convention.whole_prompts:
        _see_causally(decoder)
    call = ModelCall(model, states, pad=getattr(model.config, "pad_token_id", None), convention=convention)
    padded = _skip_padding_check(model)
    try:
        seen = probe_forward(model, call)
    except TypeError:  # it puts that token in the place of others
        for config, token in padded:
            config.pad_token_id = token
        seen = probe_forward(model, call)
    if states is not None:
        if len(seen.shapes) != states.attending:
            raise NotRagged(
                f"{states.attending} of its layers attend, {len(seen.shapes)} through transformers' attention interface"
            )
    elif not seen.shapes:
        raise NotRagged("none of its layers calls transformers' attention interface")
    _check_window(model, seen)
    return call, seen


def _see_causally(decoder: nn.Module) -> None:
    """Let a language model ask for causal attention: which tokens of a step see ahead is then up to the engine."""
    for module in decoder.modules():
        if getattr(module, "is_causal", True) is False:
            module.is_causal = True  # type: ignore[assignment]


def _by_index(model: PreTrainedModel, convention: Convention) -> tuple[ModelCall, ShapeRecorder]:
    """A model whose layers attend to positions that an index selects."""
    indexes = Indexes(model)
    name_attention(model, INDEXED)
    call = ModelCall(model, given=indexes.arguments, convention=convention)
    _skip_padding_check(model)
    return call, probe_forward(model, call)


def _traced(model: PreTrainedModel, convention: Convention) -> tuple[ModelCall, ShapeRecorder]:
    """A model that computes attention with plain operators."""
    name_attention(model, default_attention(model))
    pad = getattr(model.config, "pad_token_id", None)
    _skip_padding_check(model)
    traced = TracedAttention(model)
    name_attention(model, TRACED)
    call = ModelCall(model, given=traced.arguments, pad=pad, convention=convention)
    seen = probe_forward(model, call)
    _check_window(model, seen)
    return call, seen


def _check_window(model: PreTrainedModel, seen: ShapeRecorder) -> None:
    """Raise NotRagged if a model's window did not reach attention."""
    config = text_config(model.config)
    if not getattr(config, "sliding_window", None) or any(asked.window for asked in seen.asked):
        return
    kinds = getattr(config, "layer_types", None)
    if not kinds or any("sliding" in kind for kind in kinds):
        raise NotRagged("its config has a sliding window that its layers don't pass to attention")


def default_attention(model: PreTrainedModel) -> str:
    """The attention implementation that transformers chooses for a model by default."""
    return "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"


def name_attention(model: PreTrainedModel, name: str) -> None:
    """Write the name of an attention implementation to a model's configs, also of one that refuses to set it."""
    configs: list[object] = [getattr(module, "config", None) for module in model.modules()]
    while configs:
        config = configs.pop()
        if isinstance(config, PretrainedConfig):
            config._attn_implementation_internal = name
            configs += [getattr(config, key, None) for key in config.sub_configs]


def _separate_head(model: PreTrainedModel, call: ModelCall, agree: Agree) -> None:
    """Let the call run the output head separately, if that gives the same logits on every rank."""
    ids = torch.arange(PROBED, device=model.device).unsqueeze(0)

    def apart() -> Tensor:
        call.head = OutputHead(model)
        return call.logits(call.hidden(ids, ids, None))

    with use_attention(ShapeRecorder(model.device)):
        same = runs_apart(model, lambda: call(ids, ids, None), apart)
    if not agree(int(same)):
        call.head = None


def _skip_padding_check(model: PreTrainedModel) -> list[tuple[PretrainedConfig, int]]:
    """Keep transformers from looking for padding: some models compare input ids with `pad_token_id` on the host, which waits for the device
    and cannot be captured. Ragged steps have no padding. Returns what it changed: configs and their tokens."""
    changed = []
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and getattr(module.config, "pad_token_id", None) is not None:
            changed.append((module.config, module.config.pad_token_id))
            # past the config's own check: some types declare it an integer
            object.__setattr__(module.config, "pad_token_id", None)
    return changed


def probe_forward(model: PreTrainedModel, call: ModelCall) -> ShapeRecorder:
    """The attention layers that a few tokens run through, in call order."""
    recorder = ShapeRecorder(model.device)
    positions = torch.arange(PROBED, device=model.device).unsqueeze(0)
    with torch.inference_mode(), use_attention(recorder):
        call(positions, positions, None)
    return recorder
