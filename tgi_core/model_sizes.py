"""Validation of the sizes in config.json before anything is allocated from them.

transformers creates a list entry per layer in its configs and a module per layer in its models, so absurd sizes are rejected while
they are still numbers. `tgi_core.engine.weights.sizes` compares sizes with the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tgi_core.errors import StartupError
from tgi_core.model_files import read_json, read_optional_json, text_config

MAX_SIZE = 2**31 - 1

_LEAST = (
    dict.fromkeys(("vocab_size", "hidden_size", "n_embd", "d_model", "intermediate_size"), 1)
    | dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 1)
    | dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads"), 1)
    | dict.fromkeys(("head_dim", "num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok"), 0)
    | dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), -1)
)
"""Minimum of each size, for field names with the same meaning in all of transformers' configs. A list has a size per layer. Models
with unlimited positions use 0 or -1."""
_LARGEST_NESTING = 8


def read_sizes(directory: Path) -> dict[str, Any]:
    """Read a model's config.json and validate its sizes. Raises StartupError that names the file and the field."""
    file = directory / "config.json"
    config = read_json(file)
    for name, value in named_integers(config):
        field = name.rpartition(".")[2]
        least = _LEAST.get(field)
        if least is not None and not least <= value <= MAX_SIZE:
            path = " ".join(name.split())
            raise StartupError(f"{file}: {path} is {str(value)[:40]}; it must be from {least} to {MAX_SIZE}")
    return config


def named_vocab_size(directory: Path) -> int | None:
    """Return `vocab_size` of config.json, or None if the field or the file is missing. Raises StartupError."""
    size = text_config(read_optional_json(directory / "config.json")).get("vocab_size")
    return size if type(size) is int and 0 < size <= MAX_SIZE else None


def named_integers(config: dict[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, int]]:
    """Yield all integers of a config and its nested configs with their dotted names; items of a list under the list's name."""
    for name, value in config.items():
        if isinstance(value, dict) and depth < _LARGEST_NESTING:
            yield from named_integers(value, f"{prefix}{name[:60]}.", depth + 1)
        for number in value if isinstance(value, list) else (value,):
            if type(number) is int:
                yield f"{prefix}{name[:60]}", number
