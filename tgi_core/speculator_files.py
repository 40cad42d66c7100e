"""Recognizing speculators by their config.json, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tgi_core.model_files import read_optional_json, text_config

MEDUSA = "medusa_num_heads"
"""The field that only Medusa heads have."""

LAYER_CONFIG = "transformer_layer_config"
"""Where the library speculators writes the config of EAGLE-3's layer."""


_COUNTS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
"""Fields of a model's config for the number of its layers for multi-token prediction."""

_INDEX = "model.safetensors.index.json"


def brings_layers(directory: Path) -> bool:
    """Whether a model brings layers for multi-token prediction: its config.json counts them, or its index names their tensors. Raises
    StartupError for a damaged file."""
    config = text_config(read_optional_json(directory / "config.json"))
    if any(isinstance(count := config.get(field), int) and count > 0 for field in _COUNTS):
        return True
    places = read_optional_json(directory / _INDEX).get("weight_map")
    return isinstance(places, dict) and any(name.startswith("mtp.") for name in places)


def is_speculator(config: dict[str, Any]) -> bool:
    """Whether a config.json describes layers that guess for another model, and no model of its own."""
    return MEDUSA in config or config.get("model_type") == "mlp_speculator" or is_eagle3(config)


def is_eagle3(config: dict[str, Any]) -> bool:
    """Whether a config.json describes EAGLE-3."""
    named = config.get("architectures")
    return config.get("speculators_model_type") == "eagle3" or any(
        "eagle3" in name.lower() for name in (named if isinstance(named, list) else ()) if isinstance(name, str)
    )


def base_model(config: dict[str, Any]) -> str | None:
    """The model that a speculator was trained for, as its config.json names it; None if it names none."""
    named = config.get("base_model_name_or_path") or _verifier(config)
    return named if isinstance(named, str) and named else None


def _verifier(config: dict[str, Any]) -> object:
    """The model that the library speculators names."""
    found: object = config
    for name in ("speculators_config", "verifier", "name_or_path"):
        found = found.get(name) if isinstance(found, dict) else None
    return found
