"""Parent's side of a worker process."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from tgi_core.framing import Frames, FrameTooLong, frame
from tgi_core.workers.command import ONE_THREAD

_MAX_ANSWER = 1 << 30
"""Maximum size of an answer, in bytes. Untrusted input may cause arbitrarily large answers."""
_POLLS, _POLL_S = 200, 0.005
"""Polling for a worker's exit status: a process closes its sockets slightly before it can be reaped."""


class Worker:
    """A process that handles one request at a time. Its socket's descriptor and `arguments` are appended to `command`; `greeting`
    is sent before the first request."""

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
                stderr=subprocess.DEVNULL,  # untrusted input may end up in library messages
                env=os.environ | ONE_THREAD,
                start_new_session=True,
            )
        self.end: Callable[[], object] = weakref.finalize(self, _end, self._process, self._channel)
        """Kill the process and reap it. Idempotent."""

    async def ask(self, request: bytes) -> bytes:
        """Send a message and return the answer. Raises EOFError if the process exits, or is killed because its answer is too large."""
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
        """Call `callback` if the process exits while idle."""
        asyncio.get_running_loop().add_reader(self._channel, callback)

    def watched_no_more(self) -> None:
        """Undo `when_lost`."""
        asyncio.get_running_loop().remove_reader(self._channel)

    def kill(self) -> None:
        """Kill the process; a request in progress raises EOFError."""
        self._process.kill()

    async def exit_status(self) -> int | None:
        """Exit status of a worker whose socket is closed, negative for the signal that killed it; None if it has not exited yet."""
        polls = _POLLS
        while (code := self._process.poll()) is None and polls:
            polls -= 1
            await asyncio.sleep(_POLL_S)
        self.end()
        return code

    def processor_s(self) -> float:
        """CPU time used by the process, in seconds."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / 100  # utime and stime, in ticks of 1/100 s on Linux


def _end(process: subprocess.Popen[bytes], channel: socket.socket) -> None:
    channel.close()
    process.kill()
    process.wait()
