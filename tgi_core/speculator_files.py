"""Recognizing speculators by their config.json, without torch."""

from __future__ import annotations

from typing import Any

MEDUSA = "medusa_num_heads"
"""The field that only Medusa heads have."""


def is_speculator(config: dict[str, Any]) -> bool:
    """Whether a config.json describes layers that guess for another model, and no model of its own."""
    return MEDUSA in config or config.get("model_type") == "mlp_speculator"


def base_model(config: dict[str, Any]) -> str | None:
    """The model that a speculator was trained for, as its config.json names it; None if it names none."""
    named = config.get("base_model_name_or_path")
    return named if isinstance(named, str) and named else None
