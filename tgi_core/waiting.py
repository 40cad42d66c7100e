"""Waiting for one of several events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


async def any_set(events: Iterable[asyncio.Event], seconds: float | None = None) -> None:
    """Wait until any of the events is set, or for at most `seconds`. Returns at once if there are none."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        if waits:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
