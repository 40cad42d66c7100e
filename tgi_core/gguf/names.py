"""Tensors of GGUF files by the names that they have in Hugging Face's checkpoints of the same model."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tgi_core.errors import StartupError
from tgi_core.gguf.config import ARCHITECTURES
from tgi_core.gguf.header import GgufFile, GgufTensor

_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)", re.ASCII)

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_UNUSED = ("rope_freqs.weight",)
"""Read into the config."""

_LAYERS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}

_DIFFERENT: dict[str, dict[str, str]] = {
    "mixtral": {
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    },
    "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "gemma2": {
        "ffn_norm": "pre_feedforward_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
}
"""By model type."""


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor, or one expert's part of it, by its name in Hugging Face's checkpoints; and what differs there."""

    name: str
    tensor: GgufTensor
    pairs: bool = False
    """Rows of a head alternate between its halves: RoPE turns neighbours here, and halves there."""
    plus_one: bool = False
    """Values are one more than there."""


def named_tensors(file: GgufFile, model_type: str) -> list[NamedTensor]:
    """All tensors of a model. Raises StartupError for one that the model does not have."""
    found: list[NamedTensor] = []
    for tensor in file.tensors.values():
        if tensor.name not in _UNUSED:
            found += _named(file, tensor, model_type)
    return found


def _named(file: GgufFile, tensor: GgufTensor, model_type: str) -> list[NamedTensor]:
    """A tensor, or the parts of one that holds all experts."""
    kind = ARCHITECTURES[str(file.metadata["general.architecture"])]
    place = _LAYER.fullmatch(tensor.name)
    name = (_LAYERS | _DIFFERENT.get(model_type, {})).get(place[2]) if place else None
    if tensor.name in _TOP:
        return [NamedTensor(_TOP[tensor.name], tensor, plus_one=kind.norms_plus_one and "norm" in tensor.name)]
    if place is None or name is None:
        raise StartupError(f"{file.path}: holds the tensor {tensor.name[:80]!r}, which is not expected in a {model_type} model")
    at, leaf = f"model.layers.{int(place[1])}.{name}", place[3]
    pairs = kind.pairs and place[2] in ("attn_q", "attn_k")
    if pairs and leaf == "bias":
        raise StartupError(
            f"{file.path}: tensor {tensor.name!r}: biases of queries and keys are not supported in this architecture"
        )
    if "{}" in at:
        return [NamedTensor(f"{at.format(expert)}.{leaf}", part) for expert, part in enumerate(_experts(file, tensor))]
    if place[2] == "ffn_gate_inp_shexp" and len(tensor.shape) == 1:
        tensor = replace(tensor, shape=(1, *tensor.shape))
    return [NamedTensor(f"{at}.{leaf}", tensor, pairs, kind.norms_plus_one and "norm" in name)]


def _experts(file: GgufFile, tensor: GgufTensor) -> list[GgufTensor]:
    """The parts of a tensor [experts, out, in]."""
    if len(tensor.shape) != 3:
        raise StartupError(f"{file.path}: tensor {tensor.name!r} has shape {list(tensor.shape)}, not [experts, out, in]")
    count, size = tensor.shape[0], (tensor.end - tensor.start) // tensor.shape[0]
    starts = [tensor.start + expert * size for expert in range(count)]
    return [replace(tensor, shape=tensor.shape[1:], start=start, end=start + size) for start in starts]
