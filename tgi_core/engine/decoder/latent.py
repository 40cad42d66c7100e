"""Multi-head latent attention (MLA, DeepSeek-AI 2024, arXiv 2405.04434): its sizes in a config.json.

Models that have it are known by their config's fields, not by their names: sizes of latents and heads, and no field whose meaning is not
known here. A field that changes the arithmetic of some other model, such as a scale of the embedding, thus refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tgi_core.engine.decoder.fields import read_count
from tgi_core.engine.decoder.rotary import rope_scaling, score_scale
from tgi_core.engine.decoder.unsupported import UnsupportedFamily

LATENT_EPSILON = 1e-6
"""Of the norms of latents, whatever that of the other norms is."""

_SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")

_READ = {
    *_SIZES,
    *("attention_bias", "first_k_dense_replace", "hidden_act", "hidden_size", "intermediate_size", "max_position_embeddings"),
    *("mlp_bias", "mlp_layer_types", "moe_intermediate_size", "moe_layer_freq", "model_type", "n_group", "n_routed_experts"),
    *("n_shared_experts", "norm_topk_prob", "num_attention_heads", "num_experts_per_tok", "num_hidden_layers"),
    *("num_key_value_heads", "num_mtp_layers", "num_nextn_predict_layers", "partial_rotary_factor", "q_lora_rank"),
    *("quantization_config", "rms_norm_eps", "rope_interleave", "rope_parameters", "rope_scaling", "rope_theta"),
    *("routed_scaling_factor", "scoring_func", "tie_word_embeddings", "topk_group", "topk_method", "vocab_size"),
}
"""Fields that the table follows from, or that are read elsewhere."""

_DERIVED = {"head_dim", "qk_head_dim"}

_WITHOUT_EFFECT = {
    *("architectures", "attention_dropout", "auto_map", "aux_loss_alpha", "bos_token_id", "chunk_size_feed_forward", "dtype"),
    *("embedding_initializer_range", "eos_token_id", "ep_size", "experts_implementation", "id2label", "initializer_range"),
    *("is_encoder_decoder", "label2id", "output_attentions", "output_hidden_states", "output_router_logits", "pad_token_id"),
    *("pretraining_tp", "problem_type", "return_dict", "router_aux_loss_coef", "seq_aux", "tokenizer_class", "torch_dtype"),
    *("transformers_version", "unsloth_fixed", "use_cache"),
}
"""Fields that change no greedy token."""

_ROTARY = {
    *("attention_factor", "beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim", "original_max_position_embeddings"),
    *("partial_rotary_factor", "rope_theta", "rope_type", "truncate", "type"),
}


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """Sizes in elements. A token's keys and values follow from a latent of `kv_rank`, its queries from one of `query_rank`, or without one
    (0) from the hidden state. A query or key has `nope` elements without positions, then `rope` that are rotated; the latter are the same
    for the keys of all heads. `interleaved`: element 2 i is rotated with 2 i + 1 rather than i with i + rope / 2."""

    query_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int
    interleaved: bool

    @property
    def key(self) -> int:
        """Of a query or a key."""
        return self.nope + self.rope


def has_latent(config: dict[str, Any]) -> bool:
    """Whether a config.json has the sizes of MLA."""
    return all(config.get(name) for name in _SIZES)


def read_latent(config: dict[str, Any], heads: int) -> LatentSizes:
    """The sizes of a config.json for which `has_latent` is true. Raises UnsupportedFamily."""
    if unknown := sorted(config.keys() - _READ - _DERIVED - _WITHOUT_EFFECT):
        raise UnsupportedFamily(f"its attention is latent, and its config has {unknown[0][:60]}")
    if unknown := sorted(rope_scaling(config).keys() - _ROTARY):
        raise UnsupportedFamily(f"its attention is latent, and its rotary parameters have {unknown[0][:60]}")
    kv_rank, nope, rope, value = (read_count(config, name) for name in _SIZES)
    query_rank = read_count(config, "q_lora_rank") if config.get("q_lora_rank") else 0
    found = LatentSizes(query_rank, kv_rank, nope, rope, value, bool(config.get("rope_interleave", True)))
    if config.get("num_key_value_heads", heads) not in (None, heads):
        raise UnsupportedFamily("its attention is latent, and keys have not as many heads as queries")
    if config.get("attention_bias") and not found.query_rank:
        raise UnsupportedFamily("only some of the projections before its latent attention have biases")
    if config.get("mlp_bias"):
        raise UnsupportedFamily("its attention is latent, and its MLPs have biases")
    return found


def latent_scale(config: dict[str, Any], sizes: LatentSizes) -> float:
    """What scores are multiplied by: with YaRN's `mscale_all_dim` more than for other attention."""
    return sizes.key**-0.5 * score_scale(config)


def expert_layers(config: dict[str, Any], layers: int) -> list[bool]:
    """Which layers have experts. Raises UnsupportedFamily."""
    if "n_routed_experts" not in config or config["n_routed_experts"] is None:
        return [False] * layers
    if config.get("moe_layer_freq", 1) != 1:
        raise UnsupportedFamily("only every so many of its layers have experts")
    named, first = config.get("mlp_layer_types"), config.get("first_k_dense_replace")
    if named is None and isinstance(first, int):
        return [index >= first for index in range(layers)]
    if not isinstance(named, list) or len(named) != layers or not set(named) <= {"dense", "sparse"}:
        raise UnsupportedFamily("its config does not say which layers have experts")
    return [kind == "sparse" for kind in named]
