"""Locating or downloading the configured model and adapters."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tgi_core.adapters import parse_adapters
from tgi_core.backend import Adapter, Progress
from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.hub import Source, fetch
from tgi_core.model_files import read_optional_json
from tgi_core.rope_scaling import with_rope_scaling
from tgi_core.speculator_files import base_model, is_speculator


def fetch_models(model: str, settings: Settings, show: Progress, weights: bool = True) -> tuple[Path, Settings]:
    """Return the model's directory, and settings that name the directory of its speculator, downloading both if needed. As in TGI, a
    speculator in place of a model stands for both. Raises StartupError."""
    directory = fetch_model(model, settings, show, weights)
    config = read_optional_json(directory / "config.json")
    if not is_speculator(config):
        if settings.draft_model is None or not weights:
            return directory, replace(settings, draft_model=None)
        own = replace(settings, rope_scaling=None, rope_factor=None, revision=None, weights_cache_override=None)
        return directory, replace(settings, draft_model=str(fetch_model(settings.draft_model, own, show).absolute()))
    if settings.draft_model is not None:
        raise StartupError(f"--draft-model {settings.draft_model}: {model} is a speculator already; leave the flag out")
    base = base_model(config)
    if base is None:
        raise StartupError(
            f"{directory / 'config.json'}: describes a speculator, and names no model that it is for; use --draft-model"
        )
    found = fetch_model(base, replace(settings, revision=None), show, weights)
    if is_speculator(read_optional_json(found / "config.json")):
        raise StartupError(f"{directory / 'config.json'}: its base_model_name_or_path {base} is a speculator too")
    return found, replace(settings, draft_model=str(directory.absolute()) if weights else None)


def fetch_model_headers(model: str, settings: Settings, show: Progress) -> Path:
    """As `fetch_model`, for what is in the headers of the weights: their values may be missing. Raises StartupError."""
    from tgi_core.hub.headers import fetch_headers

    with _ended_by_interrupt():
        directory = fetch_headers(_source(model, settings), show)
    return with_rope_scaling(directory, settings.rope_scaling, settings.rope_factor)


def fetch_model(model: str, settings: Settings, show: Progress, weights: bool = True) -> Path:
    """Return the model's directory, downloading if needed, with the RoPE scaling of the settings. A router needs no weights. Raises
    StartupError."""
    with _ended_by_interrupt():
        directory = fetch(replace(_source(model, settings), only_small=not weights), show)
    if not weights or is_speculator(read_optional_json(directory / "config.json")):
        return directory
    return with_rope_scaling(directory, settings.rope_scaling, settings.rope_factor)


def _source(model: str, settings: Settings) -> Source:
    return Source(
        model,
        settings.revision,
        cache=_path(settings.huggingface_hub_cache),
        weights=_path(settings.weights_cache_override),
        auto_convert=settings.auto_convert,
    )


def fetch_adapters(settings: Settings, show: Progress) -> tuple[Adapter, ...]:
    """Return the configured adapters in order, downloading if needed. Raises StartupError."""
    sources = parse_adapters(settings.lora_adapters)
    if not sources:
        return ()
    from tgi_core.hub.adapters import fetch_adapter

    with _ended_by_interrupt():
        return tuple(
            fetch_adapter(source, _path(settings.huggingface_hub_cache), settings.auto_convert, show) for source in sources
        )


def pin_adapters(settings: Settings, show: Progress) -> Settings:
    """Download all Hub adapters and return the settings with each pinned to its current commit, so that the shard, even after a
    restart, loads the same adapters without contacting the Hub. Raises StartupError."""
    sources = parse_adapters(settings.lora_adapters)
    fetched = [Path(adapter.directory) for adapter in fetch_adapters(settings, show)]
    pinned = [
        source if Path(source.model).expanduser().is_dir() else replace(source, revision=directory.name)
        for source, directory in zip(sources, fetched, strict=True)
    ]
    return replace(settings, lora_adapters=",".join(map(str, pinned)) or None)


def check_adapters(settings: Settings) -> None:
    """Check --lora-adapters without loading anything. Raises StartupError."""
    for source in parse_adapters(settings.lora_adapters):
        if source.name == (settings.served_model_name or settings.model_id):
            raise StartupError(f"--lora-adapters {source}: is the name of the base model; choose another NAME= for the adapter")


@contextmanager
def _ended_by_interrupt() -> Generator[None, None, None]:
    """Let Ctrl-C end the process immediately: download threads cannot be stopped, and downloads resume at the next start. Does
    nothing outside the main thread, where signal handlers cannot be set."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text).expanduser()
