"""A GGUF file's metadata as the config.json of the same model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tgi_core.errors import StartupError
from tgi_core.gguf.header import GgufFile

_COMMON = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}

_EXPERTS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """How a value of `general.architecture` is described in config.json."""

    model_type: str
    fields: dict[str, str] = field(default_factory=dict)
    """Whole numbers of the metadata, beside the common ones, by the config's name."""
    floats: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    """What the files imply."""
    head_dim: bool = False
    """Whether the config names the size of a head."""
    pairs: bool = False
    """Whether rows of queries and keys are stored in pairs that RoPE turns."""
    norms_plus_one: bool = False
    """Whether norms are stored with one added."""


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", head_dim=True, pairs=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3", head_dim=True),
    "qwen2moe": Architecture(
        "qwen2_moe",
        _EXPERTS | {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        fixed={"norm_topk_prob": False, "decoder_sparse_step": 1},
    ),
    "qwen3moe": Architecture("qwen3_moe", _EXPERTS, fixed={"norm_topk_prob": True, "decoder_sparse_step": 1}, head_dim=True),
    "phi3": Architecture("phi3"),
    "gemma2": Architecture(
        "gemma2",
        {"attention.sliding_window": "sliding_window"},
        {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"},
        head_dim=True,
        norms_plus_one=True,
    ),
}
"""By `general.architecture`."""

_LARGE_GEMMA = 46
"""Layers of Gemma 2 27B, whose attention is scaled by the hidden size; the metadata doesn't say so."""

_LLAMA3_CONTEXT = 8192


def config_of(file: GgufFile) -> dict[str, Any]:
    """The config.json of a file's model. Raises StartupError for an architecture that is not supported, and for what is missing."""
    name = file.get("general.architecture", str)
    kind = ARCHITECTURES.get(name)
    if kind is None:
        raise StartupError(
            f"{file.path}: its architecture {name[:40]!r} is not supported as a GGUF file; supported are {', '.join(ARCHITECTURES)}; "
            "use the model's safetensors"
        )
    if (parts := file.metadata.get("split.count", 1)) != 1:
        raise StartupError(f"{file.path}: is one of {parts} files; join them with `llama-gguf-split --merge`")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise StartupError(f"{file.path}: lacks the tensor 'token_embd.weight' of two dimensions")
    config: dict[str, Any] = {"model_type": kind.model_type, "vocab_size": embedding.shape[0], **kind.fixed}
    config |= {there: _size(file, f"{name}.{key}") for key, there in (_COMMON | kind.fields).items()}
    config |= {there: _number(file, f"{name}.{key}") for key, there in kind.floats.items()}
    config["num_key_value_heads"] = _size(file, f"{name}.attention.head_count_kv", config["num_attention_heads"])
    config["rms_norm_eps"] = _number(file, f"{name}.attention.layer_norm_rms_epsilon")
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config |= _heads(file, name, kind, config) | _rope(file, name, kind) | _tokens(file)
    if name == "llama" and "llama.expert_count" in file.metadata:
        config |= {"model_type": "mixtral", "num_local_experts": _size(file, "llama.expert_count")}
        config["num_experts_per_tok"] = _size(file, "llama.expert_used_count")
    if name == "phi3" and "phi3.attention.sliding_window" in file.metadata:
        config["sliding_window"] = _size(file, "phi3.attention.sliding_window")
    return config | {"dtype": _dtype(file)}


def _heads(file: GgufFile, name: str, kind: Architecture, config: dict[str, Any]) -> dict[str, Any]:
    """The size of a head, and how scores are scaled where it is not by that."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if hidden % heads and f"{name}.attention.key_length" not in file.metadata:
        raise StartupError(f"{file.path}: its metadata says {heads} heads of a hidden size of {hidden}")
    size = _size(file, f"{name}.attention.key_length", max(1, hidden // heads))
    if _size(file, f"{name}.attention.value_length", size) != size or (not kind.head_dim and size * heads != hidden):
        raise StartupError(f"{file.path}: its metadata says heads of {size} numbers, which is not supported in this architecture")
    found: dict[str, Any] = {"head_dim": size} if kind.head_dim else {}
    if name == "gemma2":
        found["query_pre_attn_scalar"] = hidden // heads if config["num_hidden_layers"] == _LARGE_GEMMA else size
    rotary = _size(file, f"{name}.rope.dimension_count", size)
    if name == "phi3":
        return found | {"partial_rotary_factor": rotary / size}
    if rotary != size:
        raise StartupError(f"{file.path}: {name}.rope.dimension_count is {rotary}; supported is the size of a head, {size}")
    return found


def _rope(file: GgufFile, name: str, kind: Architecture) -> dict[str, Any]:
    """The base of RoPE's frequencies, and their scaling."""
    base, scaling = _number(file, f"{name}.rope.freq_base", 10000.0), file.metadata.get(f"{name}.rope.scaling.type", "none")
    found: dict[str, Any] = {"rope_theta": base}
    if "rope_factors_long.weight" in file.tensors or scaling not in ("none", "linear", "yarn"):
        raise StartupError(f"{file.path}: {name}.rope.scaling.type is {str(scaling)[:40]}; supported are none, linear and yarn")
    if scaling != "none":
        found["rope_scaling"] = {"rope_type": scaling, "factor": _number(file, f"{name}.rope.scaling.factor")}
        context = _size(file, f"{name}.rope.scaling.original_context_length", 0)
        if scaling == "yarn":
            found["rope_scaling"]["original_max_position_embeddings"] = context
    if "rope_freqs.weight" in file.tensors:
        found["rope_scaling"] = _llama3(file, base, file.floats("rope_freqs.weight"))
    return found


def _llama3(file: GgufFile, base: float, factors: list[float]) -> dict[str, Any]:
    """Llama 3's scaling that has these factors by frequency: the file holds no other description of it. Raises StartupError."""
    scaling: dict[str, Any] = {"rope_type": "llama3", "factor": max(factors), "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = _LLAMA3_CONTEXT
    for index, factor in enumerate(factors):
        wave = 2 * math.pi * base ** (2 * index / (2 * len(factors)))
        smooth = min(1.0, max(0.0, (_LLAMA3_CONTEXT / wave - 1.0) / 3.0))
        if abs(1 / ((1 - smooth) / scaling["factor"] + smooth) - factor) > 1e-3 * factor:
            raise StartupError(f"{file.path}: tensor 'rope_freqs.weight' is not Llama 3's scaling, which alone is supported")
    return scaling


def _tokens(file: GgufFile) -> dict[str, Any]:
    """Ids of special tokens."""
    found: dict[str, Any] = {"bos_token_id": None, "pad_token_id": None}
    for key, there in (("bos", "bos_token_id"), ("padding", "pad_token_id")):
        if f"tokenizer.ggml.{key}_token_id" in file.metadata:
            found[there] = file.get(f"tokenizer.ggml.{key}_token_id", int)
    ends = [
        file.get(f"tokenizer.ggml.{key}", int)
        for key in ("eos_token_id", "eot_token_id")
        if f"tokenizer.ggml.{key}" in file.metadata
    ]
    return found | {"eos_token_id": sorted(set(ends))}


def _dtype(file: GgufFile) -> str:
    """What matrices are stored in; bfloat16 if they are quantized."""
    kinds = {tensor.type for tensor in file.tensors.values() if len(tensor.shape) > 1 and tensor.name != "token_embd.weight"}
    return {frozenset({"F32"}): "float32", frozenset({"F16"}): "float16"}.get(frozenset(kinds), "bfloat16")


def _size(file: GgufFile, key: str, default: int | None = None) -> int:
    """A whole number. Some files have a list with one for each layer."""
    value = file.metadata.get(key)
    if isinstance(value, list) and value and all(each == value[0] for each in value):
        value = value[0]
    value = default if value is None else value
    if type(value) is not int or not 0 <= value < 1 << 31 or (value == 0 and default != 0):
        raise StartupError(f"{file.path}: its metadata is not of a model: {key} is {str(value)[:60]!r}")
    return value


def _number(file: GgufFile, key: str, default: float | None = None) -> float:
    value = float(file.get(key, (int, float), default))
    if not (math.isfinite(value) and value > 0):
        raise StartupError(f"{file.path}: its metadata is not of a model: {key} is {value}")
    return value
