"""A process that keeps one core busy, to simulate a shared machine."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def neighbour(wanted: bool) -> Iterator[None]:
    """Keep one core busy while the block runs, if `wanted`."""
    process = multiprocessing.get_context("spawn").Process(target=_burn, daemon=True)
    if wanted:
        process.start()
    try:
        yield
    finally:
        if wanted:
            process.terminate()
            process.join()


def _burn() -> None:
    while True:
        pass
