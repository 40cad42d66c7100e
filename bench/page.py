"""Frames of the page at /ui while an answer streams, in headless Chromium without a GPU.

    python -m bench.page [--tokens 10000] [--rates 100 500 2000 0]

A scripted model writes the tokens, each with five alternatives, at so many per second; 0 is all at once. A frame is the time between two
calls of requestAnimationFrame, 16.7 ms on an idle page; a long task is one that keeps the page from reacting for 50 ms or more.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Browser
from rich.console import Console
from rich.table import Table

from tests.router.scripted import ScriptedGenerator
from tests.surface.browsing import chromium
from tests.surface.chat_page import ChatPage, says, scripted, words
from tests.surface.chat_states import SHORT
from tgi_core.scheduler.stream import GenerationStream
from tgi_core.scheduler.types import GenerationRequest
from tgi_core.wire.types import Generation

_WATCH = """() => {
    const seen = window.seen = { frames: [], tasks: [] };
    new PerformanceObserver((list) => seen.tasks.push(...list.getEntries().map((task) => task.duration))).observe({ type: "longtask" });
    let last = performance.now();
    const frame = (now) => { seen.frames.push(now - last); last = now; requestAnimationFrame(frame); };
    requestAnimationFrame(frame);
}"""
_COLUMNS = (
    "tokens/s",
    "seconds",
    "frames",
    "median",
    "p95",
    "p99",
    "longest",
    "over 34 ms",
    "over 50 ms",
    "long tasks",
    "longest task",
)


class _PacedGenerator(ScriptedGenerator):
    """Plays its script at `rate` tokens per second."""

    rate = 0.0

    def submit(self, request: GenerationRequest) -> GenerationStream:
        """Play the script, all at once if the rate is 0."""
        if not self.rate:
            return super().submit(request)
        loop = asyncio.get_running_loop()
        stream = GenerationStream(loop.time(), lambda: None, buffer=1 << 40)
        stream.started_at = loop.time()
        items: Iterator[Any] = iter(self.script(request))
        start, made = loop.time(), 0

        def push() -> None:
            nonlocal made
            while made < (loop.time() - start) * self.rate:
                item = next(items, None)
                if not isinstance(item, Generation):
                    return
                stream.push(item)
                made += 1
            loop.call_later(1 / self.rate, push)

        push()
        return stream


def _measure(browser: Browser, tokens: int, rate: float) -> list[str]:
    sentence = [*words(SHORT), "\n"]
    texts = (sentence * (tokens // len(sentence) + 1))[:tokens]
    with scripted(lambda request: says(texts), kind=_PacedGenerator) as (served, generator):
        generator.rate = rate  # type: ignore[attr-defined]
        visit = ChatPage(browser, str(served.client.base_url).rstrip("/"))
        with visit.context:
            visit.ready().page.evaluate(_WATCH)
            visit.page.set_default_timeout(600_000)
            visit.ask("a long story")
            answer = visit.answer()
            seen = visit.page.evaluate("window.seen")
            if (shown := answer.locator(".text .t").count()) != tokens:
                raise RuntimeError(f"the page shows {shown} of {tokens} tokens")
    frames, tasks = sorted(seen["frames"]), seen["tasks"]
    at = [frames[min(len(frames) - 1, int(share * len(frames)))] for share in (0.5, 0.95, 0.99, 1)]
    late = [sum(frame > limit for frame in frames) for limit in (34, 50)]
    return [
        f"{rate:.0f}" if rate else "all at once",
        f"{sum(frames) / 1000:.1f}",
        str(len(frames)),
        *(f"{each:.1f}" for each in at),
        *map(str, late),
        str(len(tasks)),
        f"{max(tasks, default=0):.0f}",
    ]


def main() -> None:
    """Measure and print; times are in milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--rates", nargs="+", type=float, default=[100, 500, 2000, 0])
    arguments = parser.parse_args()
    table = Table(*_COLUMNS)
    with chromium() as browser:
        for rate in arguments.rates:
            table.add_row(*_measure(browser, arguments.tokens, rate))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
