"""Non-blocking writer of lines to standard error.

An unread pipe (`tgi serve 2>&1 | less`), a stopped terminal or a full disk must lose log lines, not delay answers. A line that can
be written immediately is written by the caller. Otherwise, it and later lines are queued in memory for a writer thread. Lines that
do not fit are dropped and counted, and the count is logged once there is space again.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable

_MOST_BYTES = 1 << 20
"""Limit of queued bytes."""
_AT_ONCE = 3072
"""Maximum size of a line written by the caller. A writable pipe accepts a page, which has room for this and the dropped-lines
message."""
_BATCH = 1 << 16


class LineWriter:
    """Writes lines to standard error. Thread-safe. `told` formats the message about dropped lines."""

    def __init__(self) -> None:
        self.told: Callable[[int], str] = "{} log lines were dropped".format
        self.dropped = 0
        """Number of dropped lines."""
        self._untold = 0
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._held = 0
        """Bytes queued or being written."""
        self._progress, self._given_up = 0, -1
        self._thread: threading.Thread | None = None

    def write(self, line: str, last: bool = False) -> None:
        """Write, queue or drop a line. If `last`, it is never dropped for lack of space."""
        data = f"{line}\n".encode(errors="backslashreplace")
        with self._changed:
            if not self._held and len(data) <= _AT_ONCE and _takes(_descriptor()):
                self._write_now(data)
            elif self._held + len(data) > _MOST_BYTES and not last:
                self._drop(1)
            else:
                self._keep(data)

    def flush(self, seconds: float = 1.0) -> None:
        """Wait up to `seconds` until everything is written. After a timeout, do not wait again until there is progress."""
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
    """Current descriptor of standard error; -1 if closed."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return -1


def _takes(descriptor: int) -> bool:
    """Whether a short write does not block. True for a closed descriptor, where it fails immediately."""
    poll = select.poll()
    if descriptor < 0:
        return True
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


def _written(data: bytes) -> bool:
    """Write all data, blocking if necessary. Returns False on error."""
    descriptor = _descriptor()
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # another process that shares the pipe has made it non-blocking
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()
        except OSError:
            return False
    return True
