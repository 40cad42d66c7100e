"""Options for opening a backend, from the settings."""

from __future__ import annotations

from pathlib import Path

from tgi_core.backend import OpenOptions
from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.model_files import quantization_method, quantization_settings, read_optional_json
from tgi_core.speculator_files import brings_layers

_FLAGS = {
    "awq": ("awq",),
    "bitsandbytes": ("bitsandbytes",),
    "bitsandbytes-fp4": ("bitsandbytes",),
    "bitsandbytes-nf4": ("bitsandbytes",),
    "compressed-tensors": ("compressed-tensors",),
    "fp8": ("fp8", "fbgemm_fp8"),
    "gptq": ("gptq", "awq", "marlin"),
    "marlin": ("marlin", "gptq"),
}
"""The `quant_method` of checkpoints that a value of --quantize names, as in TGI."""

_AT_LOAD = {
    "int8": "int8",
    "int4": "int4",
    "fp8": "fp8",
    "eetq": "int8",
    "bitsandbytes": "int8",
    "bitsandbytes-nf4": "int4",
    "bitsandbytes-fp4": "int4",
}
"""What values of --quantize round plain weights to. TGI's two of 8 bits are integers with a scale per output, as int8 is. Its two of 4
bits are numbers of a codebook with a scale per 64 inputs; int4 has as many bits and kernels of its own."""


def open_options(directory: Path, settings: Settings) -> OpenOptions:
    """Options that all ranks share: everything except group, masks and adapters. Raises StartupError if --quantize does not describe the
    checkpoint."""
    quantize = _quantize_at_load(directory, settings.quantize)
    return OpenOptions(
        str(directory),
        settings.dtype,
        memory_fraction=settings.memory_fraction * settings.cuda_memory_fraction,
        cache_dtype=settings.kv_cache_dtype.replace("fp8_", "float8_"),  # TGI's name to torch's
        compile_cache="" if settings.compile_cache is None else str(Path(settings.compile_cache).absolute()),
        quantize=quantize,
        speculator=settings.draft_model or (str(directory) if settings.speculate and brings_layers(directory) else ""),
    )


def _quantize_at_load(directory: Path, asked: str | None) -> str:
    """`OpenOptions.quantize` for a value of --quantize. A quantized checkpoint's format is read from the files; the flag has to agree."""
    if asked is None:
        return ""
    file, settings = quantization_settings(read_optional_json(directory / "config.json"), directory)
    if not settings:
        if asked not in _AT_LOAD:
            raise StartupError(
                f"--quantize {asked}: {directory} holds no quantized weights, and {asked} cannot be made at load; use one of "
                f"{', '.join(_AT_LOAD)}, or quantize the model first, as with llm-compressor or GPTQModel"
            )
        return _AT_LOAD[asked]
    method = quantization_method(settings)
    if method not in _FLAGS.get(asked, (asked,)):
        raise StartupError(f"--quantize {asked}: {file} says that the weights are quantized by {method[:40]!r}; omit the flag")
    return ""
