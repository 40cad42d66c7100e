"""Adapter from huggingface_hub's download progress to our own."""

from __future__ import annotations

import threading
from types import TracebackType

from tgi_core.backend import Progress


class DownloadProgress:
    """Progress of a download, in bytes over all files. Thread-safe."""

    def __init__(self, what: str, total: int, show: Progress) -> None:
        self._what, self._total, self._show = what, total, show
        self._lock = threading.Lock()
        self._done: dict[str, int] = {}

    def add(self, name: str, num_bytes: int) -> None:
        """Add received bytes of a file."""
        with self._lock:
            self._set(name, self._done.get(name, 0) + num_bytes)

    def finish(self, name: str, size: int) -> None:
        """Mark a file as complete, downloaded or cached."""
        with self._lock:
            self._set(name, size)

    def _set(self, name: str, done: int) -> None:
        if self._done.get(name) == done:
            return
        self._done[name] = done
        # A file that is downloaded again after an error counts twice until `finish` corrects it.
        self._show(self._what, min(sum(self._done.values()), self._total), self._total, "B")


def file_bar(progress: DownloadProgress, name: str) -> type[FileBar]:
    """Make a progress bar class for one file; huggingface_hub accepts only classes."""

    class Bar(FileBar):
        def __init__(self, *_: object, initial: float = 0, **__: object) -> None:
            super().__init__(progress, name, initial)

    return Bar


class FileBar:
    """The part of tqdm's interface that huggingface_hub uses for one file."""

    def __init__(self, progress: DownloadProgress, name: str, initial: float) -> None:
        self._progress, self._name = progress, name
        self._count(initial)

    def __enter__(self) -> FileBar:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        """Does nothing."""

    def update(self, n: float | None = 1) -> None:
        """Add bytes written to the file."""
        self._count(n or 0)

    def update_transfer(self, n: float | None = 1) -> None:
        """Ignore bytes on the wire; `update` counts them once they are in the file."""

    def set_postfix_str(self, *_: object, **__: object) -> None:
        """Ignored; the rate is computed elsewhere."""

    set_transfer_postfix_str = set_description = set_description_str = refresh = close = set_postfix_str

    def _count(self, n: float) -> None:
        if n:
            self._progress.add(self._name, int(n))
