"""One worker process, seen from the side that asks."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from tgi_core.framing import Frames, FrameTooLong, frame
from tgi_core.workers.command import ONE_THREAD

_MAX_ANSWER = 1 << 30
"""Bytes: a worker runs what strangers send, and may be made to answer anything."""
_POLLS, _POLL_S = 200, 0.005
"""A process closes its sockets a moment before its end can be seen."""


class Worker:
    """A process for one request at a time. `command` gets the number of its socket and `arguments` as its last arguments; the process
    hears `greeting` before all requests."""

    def __init__(self, command: Sequence[str], arguments: Sequence[str] = (), greeting: bytes | None = None) -> None:
        self._unsent = b"" if greeting is None else frame(greeting)
        self._frames = Frames()
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), *arguments],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what a request makes a library say
                env=os.environ | ONE_THREAD,
                start_new_session=True,
            )
        self.end: Callable[[], object] = weakref.finalize(self, _end, self._process, self._channel)
        """Kill it, and wait for it. Idempotent."""

    async def ask(self, request: bytes) -> bytes:
        """The answer to one message. Raises EOFError when the process has ended, or answers too much, which ends it."""
        loop = asyncio.get_running_loop()
        try:
            unsent, self._unsent = self._unsent, b""
            await loop.sock_sendall(self._channel, unsent + frame(request))
            while (answer := self._frames.take(_MAX_ANSWER)) is None:
                data = await loop.sock_recv(self._channel, self._frames.read_size)
                if not data:
                    raise EOFError
                self._frames.feed(data)
        except (ConnectionError, FrameTooLong) as error:
            self.kill()
            raise EOFError from error
        return answer

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when it ends while nothing is asked of it."""
        asyncio.get_running_loop().add_reader(self._channel, callback)

    def watched_no_more(self) -> None:
        """Undo `when_lost`."""
        asyncio.get_running_loop().remove_reader(self._channel)

    def kill(self) -> None:
        """End it in the middle of a request, which then raises EOFError."""
        self._process.kill()

    async def ended_by(self) -> signal.Signals | None:
        """The signal that ended a worker whose socket is closed; None if it ended by itself."""
        polls = _POLLS
        while (code := self._process.poll()) is None and polls:
            polls -= 1
            await asyncio.sleep(_POLL_S)
        self.end()
        return signal.Signals(-code) if code is not None and code < 0 else None

    def processor_s(self) -> float:
        """Processor time that it has used, in seconds."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / 100  # utime and stime, in ticks, of which Linux shows 100 a second


def _end(process: subprocess.Popen[bytes], channel: socket.socket) -> None:
    channel.close()
    process.kill()
    process.wait()
