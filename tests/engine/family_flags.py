"""What configs of the decoder family may switch on, each beside what `tiny_models` makes of a type by itself."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM

from tests.engine.tiny_configs import TRANSFORMERS_5, tiny_config
from tests.engine.tiny_models import scatter


def rope(kind: str, **fields: float) -> dict[str, object]:
    """Rotary parameters of a config, as transformers 5 or 4 names them."""
    if int(transformers.__version__.split(".")[0]) >= 5:
        return {"rope_parameters": {"rope_type": kind, **fields}}
    outside = {name: fields.pop(name) for name in ("rope_theta", "partial_rotary_factor") if name in fields}
    return {**outside, "rope_scaling": None if kind == "default" else {"rope_type": kind, **fields}}


YARN = {"factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 500.0}

FLAGS: list[tuple[str, dict[str, object]]] = [
    ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
    ("llama", rope("linear", factor=2.0, rope_theta=5000.0) | {"intermediate_size": 88}),
    (
        "llama",
        rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
            rope_theta=500.0,
        ),
    ),
    ("phi3", rope("default", rope_theta=1e4, partial_rotary_factor=0.5)),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": 2}),
    (
        "granite",
        {"embedding_multiplier": 3.0, "attention_multiplier": 0.1, "residual_multiplier": 0.4, "logits_scaling": 2.0},
    ),
    ("mistral", {"sliding_window": None, "head_dim": 32}),
    ("llama", {"head_dim": 64, "attention_bias": True}),
    ("qwen2", {"num_attention_heads": 2, "num_key_value_heads": 1}),
    ("smollm3", {"num_attention_heads": 2, "num_key_value_heads": 1, "no_rope_layers": [1, 0, 1, 0]}),
    ("llama", rope("yarn", **YARN)),
    ("llama", rope("yarn", **YARN) | {"head_dim": 64}),
    ("qwen2", rope("yarn", mscale=1.0, mscale_all_dim=0.5, **YARN)),
    ("qwen3", rope("yarn", truncate=False, attention_factor=0.9, beta_fast=8.0, **YARN)),
]
"""Biases, tied weights, rotary variants, windows of some layers and scalings: model types with fields of their configs."""

EXPERT_FLAGS: list[tuple[str, dict[str, object]]] = [
    ("qwen2_moe", {"shared_expert_intermediate_size": 80, "norm_topk_prob": True, "num_experts": 7, "num_experts_per_tok": 3}),
    ("qwen3_moe", {"norm_topk_prob": True, "num_experts_per_tok": 1, "tie_word_embeddings": True}),
    ("mixtral", {"num_local_experts": 3, "num_experts_per_tok": 3, "sliding_window": None}),
    (
        "gpt_oss",
        rope("default", rope_theta=1e4)
        | {"layer_types": ["full_attention", "sliding_attention"] * 2}
        | ({"swiglu_limit": 0.4} if TRANSFORMERS_5 else {}),  # 4 does not read it
    ),
]
"""Experts and sinks: for devices that run them from their table."""


def save_flagged(model_type: str, fields: dict[str, object], folder: Path) -> Path:
    """Write a random checkpoint with these fields, and return its directory."""
    config = tiny_config(model_type)
    torch.manual_seed(0)
    config = type(config)(**({k: v for k, v in config.to_dict().items() if k != "layer_types"} | fields))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    scatter(model)
    model.save_pretrained(folder)
    return folder
