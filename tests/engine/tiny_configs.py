"""Small configs of any model type."""

from __future__ import annotations

import inspect
from typing import Any

import transformers
from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCAB = 512

SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "d_model": 64,
    "n_embd": 64,
    "dim": 64,
    "intermediate_size": 96,
    "d_ff": 96,
    "ffn_dim": 96,
    "ffn_hidden_size": 96,
    "decoder_ffn_dim": 96,
    "encoder_ffn_dim": 96,
    "n_inner": 96,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "expert_ffn_hidden_size": 32,
    "num_hidden_layers": 4,
    "num_layers": 4,
    "n_layer": 4,
    "n_layers": 4,
    "decoder_layers": 4,
    "encoder_layers": 4,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "attention_head_size": 16,
    "d_kv": 16,
    "kv_channels": 16,
    "rotary_dim": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts": 4,
    "num_local_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 256,
    "n_positions": 256,
    "n_ctx": 256,
    "max_seq_len": 256,
    "max_sequence_length": 256,
    "sliding_window": 6,
    "attention_chunk_size": 8,
    "window_size": 6,
    "index_topk": 4,
    "unpadded_vocab_size": VOCAB,
    "initializer_range": 0.15,
    "attention_dropout": 0.0,
    "is_decoder": True,
    "use_mamba_kernels": False,
    "tie_word_embeddings": False,
}
"""What every config is cut down to, where it has the field."""


def tiny_config(model_type: str, **overrides: Any) -> PretrainedConfig:
    """A small config of a type, of the class that transformers maps it to."""
    kind = CONFIG_MAPPING[model_type]
    config = kind(**_shrunk(kind(), SPECIAL.get(model_type, {})) | overrides)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        for holder in (config, config.get_text_config(decoder=True)):
            if hasattr(holder, name):
                setattr(holder, name, 0 if name == "pad_token_id" else 1)
    return config


def _shrunk(default: PretrainedConfig, special: dict[str, Any]) -> dict[str, Any]:
    """Constructor arguments for a small version of a default config."""
    fields = {name: value for name, value in SMALL.items() if _has(default, name)}
    for name in getattr(default, "sub_configs", None) or {}:
        nested = getattr(default, name, None)
        if isinstance(nested, PretrainedConfig) and name not in special:
            fields[name] = _shrunk(nested, SPECIAL.get(nested.model_type, {})) | (
                {"model_type": nested.model_type} if nested.model_type else {}
            )
    if "qk_rope_head_dim" in fields:
        # Latent attention: the rotary part is all that `head_dim` means, and every query head has its own keys and values.
        fields |= {name: value for name, value in (("head_dim", 8), ("num_key_value_heads", 4)) if name in fields}
    return fields | special


def _has(config: PretrainedConfig, name: str) -> bool:
    """Whether a field can be set and means something."""
    if name in config.attribute_map or isinstance(getattr(type(config), name, None), property):
        return False
    if name in (getattr(config, "per_layer_attributes", None) or ()) or (
        name in PER_LAYER and name in inspect.signature(type(config)).parameters
    ):
        return True
    return getattr(config, name, None) is not None


TRANSFORMERS_5 = int(transformers.__version__.split(".")[0]) >= 5

PER_LAYER = ("head_dim", "num_key_value_heads", "num_attention_heads")
"""Fields that are None by default or differ from layer to layer, and matter all the same."""

MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 8}
DELTA = {"linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
MIXED = ["linear_attention", "full_attention"] * 2
QWEN4 = {
    "layer_types": ["linear_attention", "indexed_attention"] * 2,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 4,
    "indexer_compress_ratio": 2,
    **DELTA,
}

SPECIAL: dict[str, dict[str, Any]] = {
    "mllama_vision_model": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_global_layers": 1,
        "attention_heads": 4,
        "image_size": 28,
        "patch_size": 7,
        "intermediate_layers_indices": [0],
        "vision_output_dim": 64,
    },
    "bailing_hybrid": {"layer_types": MIXED, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "num_local_experts": 4},
    "bamba": {"attn_layer_indices": [1, 3], **MAMBA},
    "cohere_compass_text": {
        "rope_parameters": {name: {"rope_type": "default", "rope_theta": 1e4} for name in ("sliding_attention", "full_attention")}
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dory": {"n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "falcon_h1": {"mamba_d_ssm": 128, **MAMBA},
    "gemma3n_text": {
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
    },
    "gemma4_text": {
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2, **MAMBA},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2, "mamba_d_state": 8, "mamba_dt_rank": 8},
    "kimi_linear": {"layer_types": MIXED, "linear_head_dim": 16, "linear_num_heads": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 8},
    "nemotron_h": {
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
        "chunk_size": 8,
        "moe_shared_expert_intermediate_size": 32,
    },
    "qwen3_next": {"layer_types": MIXED, **DELTA},
    "qwen4_exp_text": QWEN4,
    "reformer": {
        "attn_layers": ["local", "lsh"] * 2,
        "axial_pos_shape": (16, 16),
        "axial_pos_embds_dim": (16, 48),
        "feed_forward_size": 96,
        "hash_seed": 0,
    },
    "xlstm": {"num_heads": 4, "qk_dim_factor": 1.0, "embedding_dim": 64, "num_blocks": 4},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2, "n_mamba_heads": 8, "mamba_d_state": 16, "chunk_size": 8},
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
}
"""What single types need beside, or instead of, `SMALL`."""
