"""The processes that render chat templates: started when first needed, ended when one takes too long, and started again.

Measured on two busy cores: a start takes 0.2 s, once; a rendering costs 0.2 ms more than in this process.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

from tgi_router.errors import ModelOverloaded, TemplateFailed
from tgi_router.template_child import LENGTH, SECONDS

WALL_SECONDS = SECONDS + 3.0
"""How long a rendering may take by the clock, its process' start on a busy machine included. The processor time ends first."""

_CHILD = Path(__file__).with_name("template_child.py")


class _Child:
    """One process, for one rendering at a time."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        with theirs:
            # -I: neither the environment nor the current directory adds modules
            command = [sys.executable, "-I", str(_CHILD), str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, start_new_session=True)
        self.end = weakref.finalize(self, _end, process, self._channel)

    async def ask(self, request: bytes) -> bytes:
        """The answer to one message; raises EOFError when the process has ended."""
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._channel, LENGTH.pack(len(request)) + request)
            [length] = LENGTH.unpack(await self._read(LENGTH.size))
            return await self._read(length)
        except ConnectionError as error:
            raise EOFError from error

    async def _read(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = bytearray()
        while len(data) < size:
            piece = await loop.sock_recv(self._channel, min(size - len(data), 1 << 20))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)


class TemplatePool:
    """Renders templates in at most `size` processes. Used on one event loop."""

    def __init__(self, size: int, longest: int) -> None:
        self._longest = longest
        self._turns = asyncio.Semaphore(size)
        self._idle: list[_Child] = []
        self._running: set[asyncio.Task[dict[str, str]]] = set()

    async def render(self, source: str, variables: dict[str, Any]) -> str:
        """The text of a template. Raises TemplateFailed, and ModelOverloaded where all processes are busy for too long."""
        request = json.dumps({"source": source, "variables": variables, "longest": self._longest}).encode()
        try:
            async with asyncio.timeout(WALL_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            raise ModelOverloaded from None
        # a client that leaves does not end the rendering: a process that must be started again costs more than its rest
        rendering = asyncio.create_task(self._ask(request))
        self._running.add(rendering)
        rendering.add_done_callback(self._done)
        answer = await asyncio.shield(rendering)
        if "error" in answer:
            raise TemplateFailed(answer["error"])
        return _unicode(answer["text"])

    def _done(self, rendering: asyncio.Task[dict[str, str]]) -> None:
        self._running.discard(rendering)
        self._turns.release()

    async def _ask(self, request: bytes) -> dict[str, str]:
        child = self._idle.pop() if self._idle else _Child()
        answer: dict[str, str] = {"error": "the template took too long"}
        try:
            async with asyncio.timeout(WALL_SECONDS):
                answer = json.loads(await child.ask(request))
            self._idle.append(child)
        except (EOFError, TimeoutError):
            child.end()
        return answer

    def close(self) -> None:
        """End the processes."""
        while self._idle:
            self._idle.pop().end()


def _end(process: subprocess.Popen[bytes], channel: socket.socket) -> None:
    channel.close()
    process.kill()
    process.wait()


def _unicode(text: str) -> str:
    """The text, or TemplateFailed where it holds halves of characters, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise TemplateFailed("the prompt is not Unicode") from None
    return text
