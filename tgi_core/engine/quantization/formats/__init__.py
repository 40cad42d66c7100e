"""Checkpoint formats of quantized weights, one file each, and which of them a model's config names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tgi_core.backend import InvalidModel
from tgi_core.engine.quantization.formats.awq import Awq
from tgi_core.engine.quantization.formats.base import Format
from tgi_core.engine.quantization.formats.bitsandbytes import BitsAndBytes
from tgi_core.engine.quantization.formats.compressed_tensors import CompressedTensors
from tgi_core.engine.quantization.formats.eetq import Eetq
from tgi_core.engine.quantization.formats.exl2 import Exl2
from tgi_core.engine.quantization.formats.fp8 import FbgemmFp8, Fp8
from tgi_core.engine.quantization.formats.gguf import Gguf
from tgi_core.engine.quantization.formats.gptq import Gptq
from tgi_core.engine.quantization.formats.hqq import Hqq
from tgi_core.engine.quantization.formats.marlin import Marlin
from tgi_core.engine.quantization.formats.mxfp4 import Mxfp4
from tgi_core.errors import StartupError
from tgi_core.model_files import quantization_method, quantization_settings

FORMATS: dict[str, type[Format]] = {
    "awq": Awq,
    "bitsandbytes": BitsAndBytes,
    "compressed-tensors": CompressedTensors,
    "eetq": Eetq,
    "exl2": Exl2,
    "fbgemm_fp8": FbgemmFp8,
    "fp8": Fp8,
    "gguf": Gguf,
    "gptq": Gptq,
    "hqq": Hqq,
    "marlin": Marlin,
    "mxfp4": Mxfp4,
}
"""By `quant_method`."""


def read_format(config: dict[str, Any], directory: Path) -> Format | None:
    """The format of a model's weights, named by its `config` or by a file in its directory; None if they are not quantized. Raises
    InvalidModel."""
    try:
        file, settings = quantization_settings(config, directory)
    except StartupError as error:
        raise InvalidModel(str(error)) from error
    if not settings:
        return None
    method = quantization_method(settings)
    found = FORMATS.get(method)
    if found is None:
        raise InvalidModel(
            f"{file}: the model is quantized by {method[:40]!r}, which is not supported; supported are {', '.join(FORMATS)}"
        )
    try:
        return found(settings)
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidModel(
            f"{file}: quantization_config is not of {method}: {type(error).__name__}: {str(error)[:100]}"
        ) from error
    except ValueError as error:
        raise InvalidModel(f"{file}: quantization_config: {error}") from error
