"""From a model directory to a runnable module."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING

from tgi_core.backend import InvalidModel, Progress
from tgi_core.engine.models.loading import CONFIG_ERRORS, load_model, looks_at_images, sees_images
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.quantization.formats import read_format
from tgi_core.engine.quantization.stored import StoredWeights, open_weights
from tgi_core.errors import StartupError
from tgi_core.model_files import read_json

HOST = torch.device("cpu")

UNLIMITED_POSITIONS = 32768
"""Positions to promise for models whose config names no limit, such as state-space models."""

_LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "n_ctx",
    "max_target_positions",
)
"""Fields of configs for the number of positions."""


_ALIKE = {"mimo": "qwen2"}
"""Types that transformers does not have, which differ from others in name only: MiMo's extra layers are not part of the model."""


def read_config(directory: Path, encoders: bool = False) -> PretrainedConfig:
    """The model's config, of a type that transformers knows as a causal language model or, with `encoders`, as an encoder-decoder. Raises
    InvalidModel."""
    file = directory / "config.json"
    try:
        raw = read_json(file)
    except StartupError as error:
        raise InvalidModel(str(error)) from error
    if "model_type" not in raw:
        raise InvalidModel(f"{file}: has no model_type")
    read_format(raw, directory)
    try:
        if (alike := _ALIKE.get(str(raw["model_type"]))) is not None:
            config = CONFIG_MAPPING[alike].from_dict(raw | {"model_type": alike})
        else:
            config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except CONFIG_ERRORS as error:
        reason = " ".join(str(error).split())[:200]
        raise InvalidModel(f"{file}: model type {str(raw['model_type'])[:60]!r} cannot be used: {reason}") from error
    if is_encoder_decoder(config) and not encoders:
        raise InvalidModel(f"{file}: model type {config.model_type!r} is an encoder-decoder, which this cannot run")
    known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or sees_images(config)
    if not is_encoder_decoder(config) and not known:
        raise InvalidModel(f"{file}: model type {config.model_type!r} is not a causal language model")
    config.__dict__.pop("quantization_config", None)  # this engine reads the weights; transformers builds a plain model
    return config


def is_encoder_decoder(config: PretrainedConfig) -> bool:
    """Whether a config describes a text model with an encoder and a decoder, such as T5 or BART."""
    return bool(config.is_encoder_decoder) and type(config) in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A checked model directory, and the dtype and device to run it on."""

    directory: Path
    config: PretrainedConfig
    dtype: torch.dtype
    load: Callable[[PretrainedConfig, StoredWeights, torch.dtype, Progress], PreTrainedModel] = load_model
    """Builds the model of a config and loads its weights: all of it, or one rank's part."""
    device: torch.device = HOST
    quantize: str = ""
    """As in OpenOptions."""

    def build(self, progress: Progress) -> PreTrainedModel:
        """The model with its weights, on the device. Raises InvalidModel."""
        model = self.load(deepcopy(self.config), open_weights(self.directory, self.quantize), self.dtype, progress)
        return model if self.device == HOST else model.to(self.device)


def text_config(config: PretrainedConfig) -> PretrainedConfig:
    """The part of a config that describes the language model."""
    return config.get_text_config(decoder=True)


def max_positions(config: PretrainedConfig) -> int:
    """Positions that the model supports; 0 if the config doesn't say (state-space models).

    LongRoPE changes every row's frequencies once any row of a step is longer than the original context. A row must not depend on
    other rows, so rows end there.
    """
    text = text_config(config)
    for name in _LENGTHS:
        value = getattr(text, name, None)
        if isinstance(value, int) and value > 0:
            return min(value, _longrope_start(text) or value)
    return 0


def first_position(config: PretrainedConfig) -> int:
    """The position of a row's first token in a model that counts positions from the number after its padding token."""
    pad = getattr(text_config(config), "pad_token_id", None)
    return pad + 1 if isinstance(pad, int) else 0


def shape_of(model: PreTrainedModel, dtype: torch.dtype) -> ModelShape:
    """The sizes of a model, from its config and parameters."""
    config = text_config(model.config)
    hidden = int(getattr(config, "hidden_size", 0) or getattr(config, "n_embd", 0) or getattr(config, "d_model", 0))
    inner = getattr(config, "intermediate_size", None)
    return ModelShape(
        dtype=dtype,
        vocab_size=int(config.vocab_size) + ids_without_logits(model),
        max_positions=max_positions(model.config) or UNLIMITED_POSITIONS,
        hidden_size=hidden,
        intermediate_size=inner if isinstance(inner, int) else 4 * hidden,
        weight_bytes=sum({p.data_ptr(): p.numel() * p.itemsize for p in model.parameters()}.values()),
    )


def ids_without_logits(model: PreTrainedModel) -> int:
    """Number of ids at the end of the vocabulary that only prompts can have: the placeholders of images that layers look at."""
    if not looks_at_images(model.config):
        return 0
    return max(0, int(model.get_input_embeddings().weight.shape[0]) - int(text_config(model.config).vocab_size))


def _longrope_start(text: PretrainedConfig) -> int | None:
    """The length from which LongRoPE switches; None without it. transformers 4 calls the field `rope_scaling`, 5 `rope_parameters`."""
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    if (rope.get("rope_type") or rope.get("type")) not in ("longrope", "su"):
        return None
    return rope.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", None)


def stored_dtype(config: PretrainedConfig) -> torch.dtype:
    """The dtype that the config names; float32 when it names none."""
    for holder in (config, text_config(config)):
        named = getattr(holder, "dtype", None) or getattr(holder, "torch_dtype", None)
        if isinstance(named, str):
            named = getattr(torch, named, None)
        if isinstance(named, torch.dtype):
            return named
    return torch.float32
