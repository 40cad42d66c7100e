"""Checkpoint formats of quantized weights, one file each, and which of them a model's config names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tgi_core.backend import InvalidModel
from tgi_core.engine.quantization.formats.awq import Awq
from tgi_core.engine.quantization.formats.base import Format
from tgi_core.engine.quantization.formats.bitsandbytes import BitsAndBytes
from tgi_core.engine.quantization.formats.compressed_tensors import CompressedTensors
from tgi_core.engine.quantization.formats.fp8 import FbgemmFp8, Fp8
from tgi_core.engine.quantization.formats.gptq import Gptq
from tgi_core.errors import StartupError
from tgi_core.model_files import read_json

FORMATS: dict[str, type[Format]] = {
    "awq": Awq,
    "bitsandbytes": BitsAndBytes,
    "compressed-tensors": CompressedTensors,
    "fbgemm_fp8": FbgemmFp8,
    "fp8": Fp8,
    "gptq": Gptq,
}
"""By `quant_method`."""

_OLDER = ("quantize_config.json", "quant_config.json")
"""Files that hold the settings where config.json has none."""


def read_format(config: dict[str, Any], file: Path) -> Format | None:
    """The format that a model's `config`, read from `file`, names, or a file beside it; None if weights are not quantized. Raises
    InvalidModel."""
    settings = config.get("quantization_config") or config.get("compression_config")
    if not settings:
        file = next((older for name in _OLDER if (older := file.parent / name).exists()), file)
        settings = _read(file) if file.name in _OLDER else None
    if not settings:
        return None
    method = _method(settings) if isinstance(settings, dict) else None
    found = FORMATS.get(method) if isinstance(method, str) else None
    if found is None:
        raise InvalidModel(
            f"{file}: the model is quantized by {str(method)[:40]!r}, which is not supported; supported are {', '.join(FORMATS)}"
        )
    try:
        return found(settings)
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidModel(
            f"{file}: quantization_config is not of {method}: {type(error).__name__}: {str(error)[:100]}"
        ) from error
    except ValueError as error:
        raise InvalidModel(f"{file}: quantization_config: {error}") from error


def _read(file: Path) -> dict[str, Any]:
    try:
        return read_json(file)
    except StartupError as error:
        raise InvalidModel(str(error)) from error


def _method(settings: dict[str, Any]) -> object:
    """The `quant_method`; files of AutoGPTQ and AutoAWQ, and AutoRound's exports in their formats, imply it."""
    method = settings.get("quant_method")
    if method == "auto-round":
        packing = str(settings.get("packing_format"))
        return next((name for name in ("gptq", "awq") if name in packing), packing)
    if method is None and ("w_bit" in settings or "zero_point" in settings):
        return "awq"
    if method is None and "desc_act" in settings:
        return "gptq"
    return method
