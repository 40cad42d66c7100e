"""Reading a model's JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tgi_core.errors import StartupError

DEMO = Path(__file__).parent / "demo"
"""The bundled demo model."""


MAX_JSON_BYTES = 64 * 2**20
"""Maximum size of a JSON file; the largest known checkpoint index has 15 MB."""

_OLDER_SETTINGS = ("quantize_config.json", "quant_config.json")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file. Raises StartupError that names the file."""
    try:
        if (size := path.stat().st_size) > MAX_JSON_BYTES:
            raise StartupError(f"{path}: has {size} bytes, more than the limit of {MAX_JSON_BYTES}")
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StartupError(f"{path}: not found") from error
    except RecursionError as error:
        raise StartupError(f"{path}: invalid JSON: nested too deeply") from error
    except (OSError, ValueError) as error:
        raise StartupError(f"{path}: invalid JSON: {error}") from error
    if not isinstance(value, dict):
        raise StartupError(f"{path}: contains {type(value).__name__}, expected a JSON object")
    return value


def read_optional_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, or return an empty one if the file does not exist."""
    return read_json(path) if path.exists() else {}


def quantization_settings(config: dict[str, Any], directory: Path) -> tuple[Path, Any]:
    """What a model's config.json says about the quantization of its weights, or a file beside it that older tools wrote; and that file.
    Nothing (falsy) if they are not quantized. Raises StartupError."""
    settings = config.get("quantization_config") or config.get("compression_config")
    older = next((directory / name for name in _OLDER_SETTINGS if (directory / name).exists()), None)
    return (directory / "config.json", settings) if settings or older is None else (older, read_json(older))


def quantization_method(settings: Any) -> str:
    """The `quant_method` of such settings; empty if they don't tell. Files of AutoGPTQ and AutoAWQ, and AutoRound's exports in their
    formats, imply it."""
    if not isinstance(settings, dict):
        return ""
    method = settings.get("quant_method")
    if method in ("gptq", None) and (settings.get("checkpoint_format") == "marlin" or settings.get("is_marlin_format") is True):
        return "marlin"
    if method == "auto-round":
        packing = str(settings.get("packing_format"))
        return next((name for name in ("gptq", "awq") if name in packing), packing)
    if method is None and ("w_bit" in settings or "zero_point" in settings):
        return "awq"
    if method is None and "desc_act" in settings:
        return "gptq"
    return method if isinstance(method, str) else ""


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of config.json that describes the language model."""
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, dict) else config
