"""The files of EAGLE-3 (Li et al. 2025, arXiv 2503.01840).

config.json is that of a decoder of the Llama family, as SpecForge and SGLang write it, or holds one in `transformer_layer_config`, as the
library speculators does. For the model's hidden size T, and H of its own, the safetensors files hold `fc.weight` [H, 3T], one decoder
layer `midlayer.` or `layers.0.` whose attention takes 2H elements, `norm.weight` [H], and an output head `lm_head.weight` [own
vocabulary, H], in which token i is token i + `d2t`[i] of the model (`t2d` is the inverse). Without `embed_tokens.weight` [vocabulary, H],
the model's embeddings are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tgi_core.backend import InvalidModel
from tgi_core.engine.decoder.table import DecoderTable, projections, read_table
from tgi_core.engine.decoder.unsupported import UnsupportedFamily
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.quantization.weight import Dense
from tgi_core.engine.speculators.files import SpeculatorConfig, SpeculatorTensors
from tgi_core.speculator_files import LAYER_CONFIG

STATES = 3
"""Number of the model's layers whose hidden states are used."""

_LAYERS = ("midlayer.", "layers.0.")


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """`table` describes the layer, and `states` lists the model's layers before which hidden states are taken."""

    table: DecoderTable
    states: tuple[int, ...]
    vocab_size: int
    norm_before_residual: bool
    model_hidden: int

    @classmethod
    def read(cls, config: SpeculatorConfig, shape: ModelShape, layers: int) -> Eagle3Config:
        """For a model of that shape and number of layers. Raises InvalidModel."""
        own = config.values.get(LAYER_CONFIG, config.values)
        if not isinstance(own, dict):
            raise InvalidModel(f"speculator: {config.file}: {LAYER_CONFIG} is not an object")
        try:
            table = read_table(own | {"model_type": "llama", "num_hidden_layers": own.get("num_hidden_layers", 1)})
        except UnsupportedFamily as reason:
            raise InvalidModel(f"speculator: {config.file}: {reason}") from reason
        if len(table.layers) != 1:
            raise InvalidModel(f"speculator: {config.file}: has {len(table.layers)} layers; EAGLE-3 runs with 1")
        vocab_size = config.number("draft_vocab_size", shape.vocab_size, min(table.vocab_size, shape.vocab_size))
        before = config.switch("norm_before_residual")
        return cls(table, _states(config, layers), vocab_size, before, shape.hidden_size)


def _states(config: SpeculatorConfig, layers: int) -> tuple[int, ...]:
    """vLLM counts the layers before the hidden state, SGLang's `eagle_config` those that end with it."""
    nested: Any = config.values.get("eagle_config")
    field = "eagle_aux_hidden_state_layer_ids"
    ids, shift = config.values.get(field), 0
    if ids is None and isinstance(nested, dict):
        ids, shift = nested.get(field), 1
    if ids is None:
        ids, shift = [2, layers // 2, layers - 3], 0
    known = isinstance(ids, list) and len(ids) == STATES and all(type(id) is int and 0 <= id + shift < layers for id in ids)
    if not known:
        raise InvalidModel(
            f"speculator: {config.file}: {field} must be {STATES} layers of the model's {layers}, not {str(ids)[:40]!r}"
        )
    return tuple(id + shift for id in ids)


class Eagle3Tensors(SpeculatorTensors):
    """The tensors of an EAGLE-3 checkpoint; unknown ones are errors."""

    def __init__(self, directory: Path, config: Eagle3Config, shape: ModelShape) -> None:
        """Raises InvalidModel."""
        super().__init__(self.files(directory), shape.dtype)
        self._config, self._shape = config, shape
        self._layer = next((name for name in _LAYERS if f"{name}hidden_norm.weight" in self), _LAYERS[0])
        self._read = {"t2d"}

    def tensor(self, name: str, *shape: int) -> Tensor:
        """See `SpeculatorTensors.tensor`."""
        self._read.add(name)
        return super().tensor(name, *shape)

    def norm(self, name: str, of_layer: bool = True) -> Tensor:
        """The weights of a norm [hidden]."""
        return self.tensor(f"{self._layer if of_layer else ''}{name}.weight", self._config.table.hidden).clone()

    def combining(self) -> Dense:
        """The projection of the model's hidden states to one."""
        return Dense.of(self.tensor("fc.weight", self._config.table.hidden, STATES * self._shape.hidden_size))

    def projection(self, *names: str) -> tuple[Dense, Tensor | None]:
        """The concatenated weights and biases of projections of the layer."""
        found, parts, biases = projections(self._config.table), list[Tensor](), list[Tensor]()
        for name in names:
            (size, columns), bias = found[name]
            doubled = name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
            parts.append(self.tensor(f"{self._layer}{name}.weight", size, 2 * columns if doubled else columns))
            if bias:
                biases.append(self.tensor(f"{self._layer}{name}.bias", size))
        return Dense.of(torch.cat(parts)), torch.cat(biases) if biases else None

    def head(self) -> Dense:
        """The output head."""
        return Dense.of(self.tensor("lm_head.weight", self._config.vocab_size, self._config.table.hidden))

    def embedding(self, model: Tensor) -> Tensor:
        """Its own embeddings, or the model's."""
        name, hidden = "embed_tokens.weight", self._config.table.hidden
        if name not in self and model.shape[1] == hidden:
            return model
        return self.tensor(name, model.shape[0], hidden)

    def tokens(self) -> Tensor:
        """The model's token for each of its own, int64. Raises InvalidModel for one that the model does not have."""
        own, vocab = self._config.vocab_size, self._shape.vocab_size
        tokens = torch.arange(own)
        if "d2t" in self or own != vocab:
            self._read.add("d2t")
            tokens += self.integers("d2t", own)
        if not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab:
            raise InvalidModel(f"speculator: {self.place}: tensor 'd2t' names tokens that the model's {vocab} do not include")
        return tokens

    def check_all_read(self) -> None:
        """Call it last. Raises InvalidModel for a tensor that was not read: ignoring it would compute something else."""
        unknown = sorted(name for name in self.names if name not in self._read and not name.endswith("rotary_emb.inv_freq"))
        if unknown:
            raise InvalidModel(f"speculator: {self.place}: holds tensor {unknown[0]!r}, which EAGLE-3 does not have")
