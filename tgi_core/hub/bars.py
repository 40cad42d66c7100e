"""What huggingface_hub reports of a download, handed to our own progress."""

from __future__ import annotations

import threading
from types import TracebackType

from tgi_core.backend import Progress


class DownloadProgress:
    """Bytes of all files together. Thread-safe."""

    def __init__(self, what: str, total: int, show: Progress) -> None:
        self._what, self._total, self._show = what, total, show
        self._lock = threading.Lock()
        self._done: dict[str, int] = {}

    def add(self, name: str, num_bytes: int) -> None:
        """So many more bytes of a file have arrived."""
        with self._lock:
            self._set(name, self._done.get(name, 0) + num_bytes)

    def finish(self, name: str, size: int) -> None:
        """A file is complete, however it got here."""
        with self._lock:
            self._set(name, size)

    def _set(self, name: str, done: int) -> None:
        if self._done.get(name) == done:
            return
        self._done[name] = done
        # A file that is fetched again after a fault counts twice until it is complete; the last line comes from `finish`.
        self._show(self._what, min(sum(self._done.values()), self._total), self._total, "B")


def file_bar(progress: DownloadProgress, name: str) -> type[FileBar]:
    """A class for huggingface_hub to make its bar of one file from; it takes no other callable."""

    class Bar(FileBar):
        def __init__(self, *_: object, initial: float = 0, **__: object) -> None:
            super().__init__(progress, name, initial)

    return Bar


class FileBar:
    """The part of tqdm's surface that huggingface_hub uses for one file."""

    def __init__(self, progress: DownloadProgress, name: str, initial: float) -> None:
        self._progress, self._name = progress, name
        self._count(initial)

    def __enter__(self) -> FileBar:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing to end."""

    def update(self, n: float | None = 1) -> None:
        """So many bytes more."""
        self._count(n or 0)

    def update_transfer(self, n: float | None = 1) -> None:
        """Bytes on the wire; `update` counts the same ones once they are in the file."""

    def set_postfix_str(self, *_: object, **__: object) -> None:
        """We compute the rate ourselves."""

    set_transfer_postfix_str = set_description = set_description_str = refresh = close = set_postfix_str

    def _count(self, n: float) -> None:
        if n:
            self._progress.add(self._name, int(n))
