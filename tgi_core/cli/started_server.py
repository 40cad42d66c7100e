"""A `tgi serve` of one's own on the loopback, while a block runs."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tgi_core.errors import StartupError
from tgi_core.workers.command import python

_READY = re.compile(r"ready after [\d.]+ s: (http://\S+)")
_END_S = 30.0


@contextmanager
def started_server(model: str | None, flags: Sequence[str]) -> Iterator[str]:
    """Start a server for a model and yield its URL; it ends with the block. What it says is shown until it is ready. Signals of the
    terminal do not reach it. Raises StartupError if it ends before."""
    place = ["--hostname", "127.0.0.1", "--port", "0", "--drain-delay", "0"]
    command = [*python("tgi_core"), "serve", *([] if model is None else [model]), *place, *flags]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        watched = _Watched(child)
        try:
            yield watched.url()
        finally:
            watched.end()


class _Watched:
    """A server and what it writes to standard error."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self._told, self._url = threading.Event(), ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def url(self) -> str:
        """Wait until the server is ready. Raises StartupError."""
        self._told.wait()
        if not self._url:
            raise StartupError(f"the server ended with status {self._child.wait()}; its last words are above")
        return self._url

    def end(self) -> None:
        """End the server."""
        self._child.terminate()
        try:
            self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
        self._reader.join()

    def _read(self) -> None:
        for line in self._child.stderr or ():
            if found := _READY.search(line):
                self._url = found.group(1)
                self._told.set()
            elif not self._url:
                sys.stderr.write(line)
                sys.stderr.flush()
        self._told.set()
