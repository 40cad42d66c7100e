"""From settings to a model's directory."""

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


def fetch_model(model: str, settings: Settings, show: Progress, weights: bool = True) -> Path:
    """The directory of the model that the settings mean; a router can do without its weights. Raises StartupError."""
    source = Source(
        model,
        settings.revision,
        cache=_path(settings.huggingface_hub_cache),
        weights=_path(settings.weights_cache_override),
        auto_convert=settings.auto_convert,
        only_small=not weights,
    )
    with _ended_by_interrupt():
        return fetch(source, show)


def fetch_adapters(settings: Settings, show: Progress) -> tuple[Adapter, ...]:
    """The directories of the adapters that the settings name, in their order. Raises StartupError."""
    sources = parse_adapters(settings.lora_adapters)
    if not sources:
        return ()
    from tgi_core.hub.adapters import fetch_adapter

    with _ended_by_interrupt():
        return tuple(
            fetch_adapter(source, _path(settings.huggingface_hub_cache), settings.auto_convert, show) for source in sources
        )


def pin_adapters(settings: Settings, show: Progress) -> Settings:
    """The settings with every adapter of the hub fetched, and named by the commit that it has now: whoever opens them next, and be it
    a shard that is started again, gets the same ones without asking the hub. Raises StartupError."""
    sources = parse_adapters(settings.lora_adapters)
    fetched = [Path(adapter.directory) for adapter in fetch_adapters(settings, show)]
    pinned = [
        source if Path(source.model).expanduser().is_dir() else replace(source, revision=directory.name)
        for source, directory in zip(sources, fetched, strict=True)
    ]
    return replace(settings, lora_adapters=",".join(map(str, pinned)) or None)


def check_adapters(settings: Settings) -> None:
    """What can be judged by the settings alone. Raises StartupError."""
    for source in parse_adapters(settings.lora_adapters):
        if source.name == (settings.served_model_name or settings.model_id):
            raise StartupError(f"--lora-adapters {source}: is the name of the model itself; choose another NAME= for the adapter")


@contextmanager
def _ended_by_interrupt() -> Generator[None, None, None]:
    """Ctrl-C ends the process at once: downloads run in threads that cannot be stopped, and go on where they were the next time.
    Outside the main thread signals are someone else's."""
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
