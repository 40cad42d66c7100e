"""A server whose event loop measures itself, as a program: it prints its address, and the longest gap since the last for each line read.

A gap is what the loop was late by, or the processor time that this process used meanwhile, whichever is less: a machine that is busy
with other things makes a loop late, but is no fault of a request's.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tgi_router import Generator, ServedModel, create_app

from tests.router.scripted import ScriptedGenerator, says
from tests.router.serving import serving
from tgi_core.config import Settings
from tgi_core.model_files import DEMO

TICK_S = 0.005


class Gaps:
    """The longest gap of a loop."""

    def __init__(self) -> None:
        self._longest = 0.0

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            wall, used = time.monotonic(), time.process_time()
            await asyncio.sleep(TICK_S)
            late, worked = time.monotonic() - wall - TICK_S, time.process_time() - used
            self._longest = max(self._longest, min(late, worked))

    def take(self) -> float:
        """The longest so far, in seconds; from here on others count."""
        longest, self._longest = self._longest, 0.0
        return longest


def main() -> None:
    """Serve until the input ends."""
    gaps = Gaps()
    model = ServedModel.load(DEMO, "demo", Settings())

    @asynccontextmanager
    async def opening() -> AsyncIterator[Generator]:
        watching = asyncio.create_task(gaps.watch())
        yield ScriptedGenerator(lambda request: says("Hello"))
        watching.cancel()

    settings = Settings(max_total_tokens=2048)
    with serving(lambda generator: create_app(settings, model, generator), opening, settings) as served:
        print(served.address[1], flush=True)
        for _ in sys.stdin:
            print(gaps.take(), flush=True)


if __name__ == "__main__":
    main()
