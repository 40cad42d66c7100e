"""Checkpoint formats of quantized weights, one file each, and which of them a model's config names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tgi_core.backend import InvalidModel
from tgi_core.engine.quantization.formats.base import Format
from tgi_core.engine.quantization.formats.compressed_tensors import CompressedTensors

FORMATS: dict[str, type[Format]] = {
    "compressed-tensors": CompressedTensors,
}
"""By `quant_method`."""


def read_format(config: dict[str, Any], file: Path) -> Format | None:
    """The format that a config.json names; None if weights are not quantized. Raises InvalidModel."""
    settings = config.get("quantization_config") or config.get("compression_config")
    if not settings:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    found = FORMATS.get(method) if isinstance(method, str) else None
    if found is None:
        known = f"; {', '.join(FORMATS)} is" if FORMATS else ""
        raise InvalidModel(f"{file}: the model is quantized by {str(method)[:40]!r}, which is not supported{known}")
    try:
        return found(settings)
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidModel(
            f"{file}: quantization_config is not of {method}: {type(error).__name__}: {str(error)[:100]}"
        ) from error
    except ValueError as error:
        raise InvalidModel(f"{file}: quantization_config: {error}") from error
