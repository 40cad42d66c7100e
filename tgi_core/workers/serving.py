"""Main loop of a worker process, with its limits on CPU time and memory. Imports little, because every worker pays for it.

The signal of a request's timer has no handler, so it kills the process even during a long operation in a C library, which neither a
thread nor an exception could interrupt.
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
    """Limit this process's address space to `size` bytes and disable core dumps."""
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve(
    answer: Callable[[bytes], bytes], seconds: float, memory_bytes: int, greet: Callable[[bytes], None] | None = None
) -> None:
    """Answer requests on the socket whose descriptor is the first command-line argument, until the other side closes it.

    Limits are `seconds` of CPU time per request and `memory_bytes` of address space. `greet`, if given, receives the first message.
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
