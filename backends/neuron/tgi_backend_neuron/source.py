"""A model's directory as it is before anything is compiled: its sizes, read from JSON and headers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tgi_backend_neuron.artefact import CONFIG, is_compiled
from tgi_core.backend import InvalidModel
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.weights.sizes import check_model
from tgi_core.errors import StartupError
from tgi_core.model_files import quantization_settings, read_json, text_config

MODELS = ("granite", "llama", "llama4_text", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3")
"""Model types that optimum-neuron 0.4.5 generates text with."""
_SIZES = ("hidden_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "vocab_size")


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint, or a model that is compiled already: then `compiled` is what its neuron_config.json says.

    `config` is the language model's part of config.json; `weights` counts bytes of a compiled model's weights, elements of others.
    """

    directory: Path
    config: Mapping[str, Any]
    compiled: Mapping[str, Any]
    weights: int

    @classmethod
    def read(cls, directory: Path) -> Source:
        """Raises InvalidModel naming file and field."""
        try:
            if is_compiled(directory):
                compiled = read_json(directory / CONFIG)
                weights = sum(file.stat().st_size for file in directory.glob("**/*.safetensors"))
            else:
                compiled, checkpoint = {}, check_model(directory)
                weights = sum(math.prod(entry.shape) for entry in checkpoint.tensors.values())
            whole = read_json(directory / "config.json")
            quantized, settings = quantization_settings(whole, directory)
        except StartupError as error:
            raise InvalidModel(str(error)) from error
        if settings:
            raise InvalidModel(f"{quantized}: optimum-neuron runs no quantized checkpoints; use an unquantized one")
        source = cls(directory, text_config(whole), compiled, weights)
        source.check()
        return source

    def check(self) -> None:
        """Raises InvalidModel for a type of model that is not supported, and for sizes that are missing."""
        file = self.directory / "config.json"
        if self.config.get("model_type") not in MODELS:
            raise InvalidModel(f"{file}: optimum-neuron runs no {self.config.get('model_type')!r}; it runs {', '.join(MODELS)}")
        for name in _SIZES:
            if not isinstance(self.config.get(name), int):
                raise InvalidModel(f"{file}: {name} is missing")
        if self.compiled and not all(
            isinstance(self.compiled.get(name), int) for name in ("batch_size", "sequence_length", "tp_degree")
        ):
            raise InvalidModel(f"{self.directory / CONFIG}: batch_size, sequence_length or tp_degree is missing")

    @property
    def dtype(self) -> str:
        """torch's name for the dtype that the model is stored or compiled in."""
        named = self.compiled.get("torch_dtype") or self.config.get("dtype") or self.config.get("torch_dtype")
        return str(named or "float32")

    def shape(self, dtype: torch.dtype) -> ModelShape:
        """Its sizes, in a dtype."""
        weight_bytes = self.weights if self.compiled else self.weights * dtype.itemsize
        config = self.config
        return ModelShape(dtype, config["vocab_size"], config["max_position_embeddings"], config["hidden_size"], 0, weight_bytes)

    def position_bytes(self, dtype: torch.dtype, cores: int) -> int:
        """Memory of one position of a slot on all cores: each of them has at least one KV head."""
        heads = self.config["num_attention_heads"]
        width = self.config.get("head_dim") or self.config["hidden_size"] // heads
        kv_heads = max(self.config.get("num_key_value_heads") or heads, cores)
        return int(2 * self.config["num_hidden_layers"] * kv_heads * width * dtype.itemsize)
