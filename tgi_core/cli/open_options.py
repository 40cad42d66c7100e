"""What the settings ask a backend to open."""

from __future__ import annotations

from pathlib import Path

from tgi_core.backend import OpenOptions
from tgi_core.config import Settings


def open_options(directory: Path, settings: Settings) -> OpenOptions:
    """The model in a directory as every rank opens it, without what only some have: group, masks, adapters."""
    return OpenOptions(
        str(directory),
        settings.dtype,
        memory_fraction=settings.memory_fraction * settings.cuda_memory_fraction,
        cache_dtype=settings.kv_cache_dtype.replace("fp8_", "float8_"),  # torch's words for TGI's
    )
