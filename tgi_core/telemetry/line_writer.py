"""Lines to standard error that never hold up who writes them.

A pipe that nobody reads (`tgi serve 2>&1 | less`), a terminal that was stopped and a disk that is full must cost lines, not answers.
A line that the other side takes at once is written by whoever has it. Behind one that would have to wait, lines wait in memory for a
thread of their own; what does not fit there is dropped, counted, and told of when there is room again.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable

_MOST_BYTES = 1 << 20
"""What may wait."""
_AT_ONCE = 3072
"""A pipe that takes anything takes this much, and the news of dropped lines: a page."""
_BATCH = 1 << 16


class LineWriter:
    """Writes to one file descriptor. Thread-safe. `told` makes the line that says how many were dropped."""

    def __init__(self) -> None:
        self.told: Callable[[int], str] = "{} log lines were dropped".format
        self.dropped = 0
        """Lines that nobody will read."""
        self._untold = 0
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._held = 0
        """Bytes that wait or are being written."""
        self._progress, self._given_up = 0, -1
        self._thread: threading.Thread | None = None

    def write(self, line: str, last: bool = False) -> None:
        """Write a line, keep it or drop it; the last one is kept in any case."""
        data = f"{line}\n".encode(errors="backslashreplace")
        with self._changed:
            if not self._held and len(data) <= _AT_ONCE and _takes(_descriptor()):
                self._write_now(data)
            elif self._held + len(data) > _MOST_BYTES and not last:
                self._drop(1)
            else:
                self._keep(data)

    def flush(self, seconds: float = 1.0) -> None:
        """Wait until all is written; not for long, and not again while nobody reads."""
        with self._changed:
            if self._given_up != self._progress and not self._changed.wait_for(lambda: not self._held, seconds):
                self._given_up = self._progress

    def _write_now(self, data: bytes) -> None:
        untold = self._untold
        if not _written(self._take_untold() + data):
            self._untold = untold
            self._drop(1)

    def _keep(self, data: bytes) -> None:
        self._append(self._take_untold() + data)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="log", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _append(self, data: bytes) -> None:
        self._lines.append(data)
        self._held += len(data)

    def _drop(self, count: int) -> None:
        self.dropped += count
        self._untold += count

    def _take_untold(self) -> bytes:
        count, self._untold = self._untold, 0
        return f"{self.told(count)}\n".encode() if count else b""

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._lines))
                batch = self._batch()
            done = _written(b"".join(batch))
            with self._changed:
                self._held -= sum(map(len, batch))
                self._progress += 1
                if not done:
                    self._drop(len(batch))
                elif not self._lines and self._untold:
                    self._append(self._take_untold())
                self._changed.notify_all()

    def _batch(self) -> list[bytes]:
        batch, size = [], 0
        while self._lines and size < _BATCH:
            batch.append(self._lines.popleft())
            size += len(batch[-1])
        return batch


def _descriptor() -> int:
    """Where standard error goes now; -1 where it is closed."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return -1


def _takes(descriptor: int) -> bool:
    """Whether a short line can be written at once, or never."""
    poll = select.poll()
    if descriptor < 0:
        return True
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


def _written(data: bytes) -> bool:
    """Write all of it, however long that takes; whether it is."""
    descriptor = _descriptor()
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # whoever shares the pipe has made it so
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()
        except OSError:
            return False
    return True
