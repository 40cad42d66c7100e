"""Options for opening a backend, from the settings."""

from __future__ import annotations

from pathlib import Path

from tgi_core.backend import OpenOptions
from tgi_core.config import Settings


def open_options(directory: Path, settings: Settings) -> OpenOptions:
    """Options that all ranks share: everything except group, masks and adapters."""
    return OpenOptions(
        str(directory),
        settings.dtype,
        memory_fraction=settings.memory_fraction * settings.cuda_memory_fraction,
        cache_dtype=settings.kv_cache_dtype.replace("fp8_", "float8_"),  # TGI's name to torch's
        compile_cache="" if settings.compile_cache is None else str(Path(settings.compile_cache).absolute()),
    )
