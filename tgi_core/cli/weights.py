"""From settings to a model's directory."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tgi_core.backend import Progress
from tgi_core.config import Settings
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
