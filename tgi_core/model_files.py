"""Where a model's files are, and the small JSON ones among them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tgi_core.errors import StartupError

DEMO = Path(__file__).parent / "demo"
"""The bundled demo model."""


def locate(model: str, revision: str | None = None) -> Path:
    """The directory of a model: a path as it is, a hub id from the hub's cache or the hub. Raises StartupError."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise StartupError(f"model {model}: is a file; give the directory that holds it")
    if model.startswith(("/", ".", "~")) or model.count("/") != 1:
        raise StartupError(f"model {model}: no such directory, and not a hub id of the form OWNER/NAME")
    return _from_hub(model, revision)


def _from_hub(model: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = ["*.json", "*.jinja", "*.safetensors", "*.model"]
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=patterns))
    except LocalEntryNotFoundError as error:
        raise StartupError(f"model {model}: not in the local cache, and the hub cannot be reached") from error
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise StartupError(f"model {model}: cannot be fetched from the hub: {reason}") from error


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
