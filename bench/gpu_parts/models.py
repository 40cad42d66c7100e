"""Models with real shapes and random weights, and a tokenizer with one token per word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

_SHARD_BYTES = 4 * 2**30
_UNKNOWN = "t2"

QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
}
"""Qwen3-0.6B."""

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
"""Llama-3.1-8B, without RoPE scaling."""

_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 512,
}
_COMMON = {"dtype": "bfloat16", "torch_dtype": "bfloat16", "hidden_act": "silu", "eos_token_id": None, "bos_token_id": None}
MODELS = {"qwen3-0.6b": QWEN3, "llama-3.1-8b": LLAMA}


def make(name: str, folder: Path, small: bool, device: torch.device) -> Path:
    """Return the model's directory, created on first use with deterministic weights."""
    directory = folder / (f"{name}-small" if small else name)
    if (directory / "config.json").exists():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    config = MODELS[name] | _COMMON | (_SMALL if small else {})
    _write_weights(directory, shapes(config), device)
    _write_tokenizer(directory, config["vocab_size"])
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensors of a Llama-family decoder, by checkpoint name."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (config["vocab_size"], hidden)
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    if config["model_type"] == "qwen3":
        layer |= {"self_attn.q_norm": (head,), "self_attn.k_norm": (head,)}
    for index in range(config["num_hidden_layers"]):
        found |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    return found


def _write_weights(directory: Path, tensors: dict[str, tuple[int, ...]], device: torch.device) -> None:
    from safetensors.torch import save_file

    generator = torch.Generator(device).manual_seed(0)
    shards: list[dict[str, torch.Tensor]] = [{}]
    taken = 0
    index: dict[str, str] = {}
    for name, shape in tensors.items():
        if len(shape) == 1:
            values = torch.ones(shape, dtype=torch.bfloat16)
        else:
            drawn = torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0, 0.02, generator=generator)
            values = drawn.cpu()
        if taken and taken + values.nbytes > _SHARD_BYTES:
            shards.append({})
            taken = 0
        shards[-1][name] = values
        taken += values.nbytes
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, directory / file, metadata={"format": "pt"})
        index |= dict.fromkeys(shard, file)
    size = sum(values.nbytes for shard in shards for values in shard.values())
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": index}))


def _write_tokenizer(directory: Path, vocab_size: int) -> None:
    """A tokenizer whose token i is the word `t<i>`, so that a prompt of n words has n tokens."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    tokenizer = Tokenizer(WordLevel({f"t{index}": index for index in range(vocab_size)}, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": _UNKNOWN}
        )  # no end-of-sequence token: rows end by length
    )
