"""Shapes of the measured models. Standard library only, so that every environment can import it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's name and the fields of its transformers config."""

    title: str
    config: Mapping[str, Any]

    @property
    def head_dim(self) -> int:
        """Dimension of an attention head."""
        return int(self.config["hidden_size"] // self.config["num_attention_heads"])

    @property
    def cache_bytes(self) -> int:
        """Bytes of KV cache per token, at 2 bytes per value."""
        return 2 * 2 * int(self.config["num_hidden_layers"] * self.config["num_key_value_heads"]) * self.head_dim


SHAPES = {
    "135m": Shape(
        "SmolLM2-135M",
        {
            "model_type": "llama",
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 49152,
        },
    ),
    "500m": Shape(
        "Qwen2.5-0.5B",
        {
            "model_type": "qwen2",
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
        },
    ),
}
