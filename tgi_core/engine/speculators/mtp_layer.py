"""The layer for multi-token prediction as a model of its own: one more decoder layer of a model, and what it reads.

Its input takes the place of the embedding, the norm behind it that of the final norm, and hidden states are its logits. So it runs as any
model does.
"""

from __future__ import annotations

import re
from copy import deepcopy
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from tgi_core.backend import InvalidModel
from tgi_core.engine.models.build import text_config
from tgi_core.engine.models.loading import build_empty, put

_BY_LAYER = ("layer_types", "mlp_layer_types")
"""Fields of configs that list the kinds of layers."""


class NoLayer(Exception):
    """Why the layer of a model cannot be used."""


class MtpInput(nn.Module):
    """What the layer reads: norms of the tokens' embeddings and of the hidden states before them, concatenated and projected."""

    def __init__(self, embedding: Tensor, norm: nn.Module, hidden_first: bool) -> None:
        """`embedding` [vocabulary, hidden] is the model's; `norm` is like both norms. `hidden_first`: the order of concatenation."""
        super().__init__()
        self.embedding_norm, self.hidden_norm = deepcopy(norm), deepcopy(norm)
        size, dtype = embedding.shape[1], embedding.dtype
        self.projection = nn.Linear(2 * size, size, bias=False, device="meta", dtype=dtype)
        self.hidden: Tensor | None = None
        """Hidden states [tokens, hidden] before the tokens of the running step. Without any, the embeddings stand for them."""
        self._embedding, self._hidden_first = embedding.detach(), hidden_first  # no parameter of its own

    def forward(self, input_ids: Tensor) -> Tensor:
        """[1, tokens] → [1, tokens, hidden]."""
        embedded = F.embedding(input_ids, self._embedding)
        parts = self.embedding_norm(embedded), self.hidden_norm(embedded if self.hidden is None else self.hidden.unsqueeze(0))
        out: Tensor = self.projection(torch.cat(parts[::-1] if self._hidden_first else parts, -1))
        return out


def empty_layer(
    config: PretrainedConfig, dtype: torch.dtype, most: int, embedding: Tensor, hidden_first: bool
) -> PreTrainedModel:
    """The layer without weights, for a model of this config with at most `most` elements; see `MtpInput`. Raises NoLayer."""
    try:
        model = build_empty(_with_one_more(config), dtype, most)
    except InvalidModel as error:
        raise NoLayer(f"one more layer: {error}") from error
    norm, head = (None, None) if model is None else (getattr(model.base_model, "norm", None), model.get_output_embeddings())
    if model is None or norm is None or head is None or not isinstance(getattr(model.base_model, "layers", None), nn.ModuleList):
        raise NoLayer(f"model type {config.model_type!r} cannot be built with one more layer")
    _keep_last(model)
    model.set_submodule(path_of(model, head), nn.Identity())
    model.set_submodule(path_of(model, model.get_input_embeddings()), MtpInput(embedding, norm, hidden_first))
    kept = [re.compile(rf"\.{name}\.") for name in getattr(model, "_keep_in_fp32_modules_strict", None) or ()]
    for name, value in list(chain(model.named_parameters(), model.named_buffers())):
        if any(pattern.search(f".{name}.") for pattern in kept):
            put(model, name, value.float(), is_parameter=isinstance(value, nn.Parameter))
    return model


def path_of(model: nn.Module, module: nn.Module) -> str:
    """The name of a module in a model."""
    return next(name for name, each in model.named_modules() if each is module)


def _with_one_more(config: PretrainedConfig) -> PretrainedConfig:
    """The config of the same model with one more layer. The kind of that layer is its own field's, or else that of the last one."""
    config = deepcopy(config)
    text = text_config(config)
    count = text.num_hidden_layers
    for field in _BY_LAYER:
        kinds, own = getattr(text, field, None), getattr(text, f"mtp_{field}", None)
        if kinds:
            setattr(text, field, [*kinds[:count], (own or kinds[count:] or kinds[-1:])[0]])
    text.num_hidden_layers = count + 1
    config.tie_word_embeddings = text.tie_word_embeddings = False
    return config


def _keep_last(model: PreTrainedModel) -> None:
    """Drop all layers but the last one, which becomes the first of a cache."""
    base = model.base_model
    base.layers = base.layers[-1:]
    for module in base.layers.modules():
        if isinstance(getattr(module, "layer_idx", None), int):
            module.layer_idx = 0
    configs = [getattr(module, "config", None) for module in model.modules()]
    for config in {id(config): config for config in configs if isinstance(config, PretrainedConfig)}.values():
        config.num_hidden_layers = 1
        for field in _BY_LAYER:
            if kinds := getattr(config, field, None):
                setattr(config, field, kinds[-1:])
