"""A model of SmolLM2-135M's shape with random bfloat16 weights, for benchmarks that need no particular text."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = "tgi-core-bench/llama-135m-random"


def cache_folder() -> Path:
    """Where benchmark models lie, outside the repository."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / FOLDER


def make(folder: Path | None = None) -> Path:
    """The model's directory, made on first use (270 MB)."""
    folder = folder or cache_folder()
    if (folder / "model.safetensors").exists():
        return folder
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    folder.mkdir(parents=True, exist_ok=True)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    return folder
