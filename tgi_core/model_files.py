"""Where a model's files are, and the small JSON ones among them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tgi_core.errors import StartupError

DEMO = Path(__file__).parent / "demo"
"""The bundled demo model."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises StartupError that names the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StartupError(f"{path}: not found") from error
    except (OSError, ValueError) as error:
        raise StartupError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(value, dict):
        raise StartupError(f"{path}: holds {type(value).__name__}, not a JSON object")
    return value


def read_optional_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one when the file does not exist."""
    return read_json(path) if path.exists() else {}


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of config.json that describes the language model."""
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, dict) else config
