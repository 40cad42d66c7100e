"""The side of a worker process. It imports little, since each worker pays for it.

The timer of a request has no handler, so its signal ends the process even inside one long operation of a C library, which neither a
thread nor an exception could.
"""

from __future__ import annotations

import resource
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

from tgi_core.framing import FrameSocket


def bound_memory(size: int) -> None:
    """Give this process so many bytes of address space, and let it leave no core file behind."""
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve(
    answer: Callable[[bytes], bytes], seconds: float, memory_bytes: int, greet: Callable[[bytes], None] | None = None
) -> None:
    """Answer requests from the socket whose descriptor is the first argument, until the other side is gone.

    `seconds` of processor time for each request; `memory_bytes` of address space for the process; `greet` takes the first message.
    """
    bound_memory(memory_bytes)
    with socket.socket(fileno=int(sys.argv[1])) as stream, suppress(EOFError):
        channel = FrameSocket(stream)
        if greet is not None:
            greet(channel.receive())
        while True:
            request = channel.receive()
            signal.setitimer(signal.ITIMER_PROF, seconds)
            data = answer(request)
            signal.setitimer(signal.ITIMER_PROF, 0)
            channel.send(data)
