"""The sizes that a config.json names, checked before anything is made of them.

transformers' configs make a list entry for each layer, and their models a module: a size that nobody meant is refused while it is still a
number. What a backend's checkpoint can tell beyond that, `tgi_core.engine.weights.sizes` compares.
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
"""The least that a size may be, by the names that mean the same in all of transformers' configs; some are lists, a size per layer. Models
without a limit to their positions say 0 or -1."""
_LARGEST_NESTING = 8


def read_sizes(directory: Path) -> dict[str, Any]:
    """A model's config.json, whose sizes are sizes. Raises StartupError that names the file and the field."""
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
    """The vocabulary that config.json names; None where it names none, or there is no such file. Raises StartupError."""
    size = text_config(read_optional_json(directory / "config.json")).get("vocab_size")
    return size if type(size) is int and 0 < size <= MAX_SIZE else None


def named_integers(config: dict[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, int]]:
    """All integers of a config and the configs in it, by the path of their names; a list's under the list's name."""
    for name, value in config.items():
        if isinstance(value, dict) and depth < _LARGEST_NESTING:
            yield from named_integers(value, f"{prefix}{name[:60]}.", depth + 1)
        for number in value if isinstance(value, list) else (value,):
            if type(number) is int:
                yield f"{prefix}{name[:60]}", number
