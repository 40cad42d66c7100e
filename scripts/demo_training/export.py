"""Writing the files of the model directory."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from demo_corpus.document import BOS, PAD
from safetensors.torch import save
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from demo_training.tokenizer import STOP_IDS, VOCABULARY, token_id, tokenizer_config

WINDOW = 2048
LARGEST_FILE = 6_000_000
"""Maximum size of the weights, in bytes."""


def model_config() -> dict[str, object]:
    """Contents of config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": WINDOW,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-05,
        "initializer_range": 0.02,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "use_cache": True,
        "dtype": "float32",
        "bos_token_id": token_id(BOS),
        "eos_token_id": STOP_IDS,
        "pad_token_id": token_id(PAD),
    }


def llama_config() -> LlamaConfig:
    """The same model as transformers' class."""
    return LlamaConfig(**{key: value for key, value in model_config().items() if key != "model_type"})


def _weights(model: LlamaForCausalLM) -> bytes:
    """Tensors as float16, without the tied output matrix."""
    tensors = {
        name: tensor.detach().to(torch.float16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    data: bytes = save(tensors, metadata={"format": "pt"})
    if len(data) > LARGEST_FILE:
        raise ValueError(f"the weights have {len(data)} bytes, more than {LARGEST_FILE}")
    return data


def _json(value: Mapping[str, object]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def write_file(path: Path, data: bytes) -> None:
    """Write the file atomically."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(data)
    os.replace(fresh, path)


def write_model(folder: Path, model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    """Write all files except the card."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = tokenizer_config(WINDOW)
    files = {
        "tokenizer.json": (tokenizer.to_str(pretty=True) + "\n").encode(),
        "tokenizer_config.json": _json(settings),
        "special_tokens_map.json": _json({key: value for key, value in settings.items() if key.endswith(("_token", "_tokens"))}),
        "config.json": _json(model_config()),
        "generation_config.json": _json(
            {
                "bos_token_id": token_id(BOS),
                "eos_token_id": STOP_IDS,
                "pad_token_id": token_id(PAD),
            }
        ),
        "model.safetensors": _weights(model),
    }
    for name, data in files.items():
        write_file(folder / name, data)
