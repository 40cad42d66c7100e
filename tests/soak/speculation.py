"""Speculation under everything at once: requests of all kinds with 0 to 8 drafts, all drafters, clients that leave, a small cache and
shards that are killed. Every answer is compared with that of a server without drafts, which nobody leaves or kills.

    python -m tests.soak.speculation [--requests N] [--kills N] [--dtypes float32 bfloat16]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import httpx

from tests.serve.process import ServerProcess, served
from tests.serve.speculating import accepted, answers, series
from tests.soak.kills import another_shard, kill

FLAGS = ("--backend", "cpu", "--max-batch-size", "8")
DTYPES = ("float32", "bfloat16")
FEW = ("--kv-cache-tokens", "512", "--speculator", "suffix")
LENGTHS = range(9)
"""Values of `--speculate`."""


@dataclass
class Found:
    """What a run has seen."""

    answers: int = 0
    wrong: list[tuple[str, int, int]] = field(default_factory=list)
    """Each with its dtype, the number of drafts and of the request."""
    kills: int = 0
    steps: int = 0
    tokens: int = 0
    accepted: Counter[str] = field(default_factory=Counter)


class Killer:
    """Kills the shard of a server after every `every` answers, once it is there again."""

    def __init__(self, server: ServerProcess, every: int) -> None:
        self._server, self._every = server, every
        self._answers = 0
        self._news = asyncio.Event()
        self.kills = 0

    def seen(self) -> None:
        """An answer has arrived."""
        self._answers += 1
        self._news.set()

    async def run(self) -> None:
        """Kill until cancelled."""
        shard = 0
        async with httpx.AsyncClient(base_url=self._server.url) as client:
            while True:
                shard = await another_shard(self._server.child.pid, shard)
                while (await client.get("/health")).status_code != 200:
                    await asyncio.sleep(0.02)
                await self._answered(self._answers + self._every)
                with suppress(ProcessLookupError):
                    kill(shard)
                    self.kills += 1

    async def _answered(self, count: int) -> None:
        while self._answers < count:
            self._news.clear()
            await self._news.wait()


async def killing(server: ServerProcess, requests: range, every: int) -> tuple[list[str], int]:
    """All answers, and the number of kills meanwhile."""
    killer = Killer(server, every)
    task = asyncio.create_task(killer.run())
    try:
        return await answers(server.url, requests, leaving=True, seen=killer.seen), killer.kills
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def speculation(requests: int, kills: int, dtypes: Sequence[str] = DTYPES, report: Callable[[str], None] = print) -> Found:
    """At least so many requests and about so many kills with each dtype."""
    each = range(-(-requests // len(LENGTHS)))
    every = max(1, requests // max(1, kills))
    found = Found()
    for dtype in dtypes:
        flags = (*FLAGS, "--dtype", dtype)
        with served(*flags) as plain:
            wanted = asyncio.run(answers(plain.url, each))
        for length in LENGTHS:
            with served(*flags, *FEW, "--speculate", str(length)) as server:
                bodies, killed = asyncio.run(killing(server, each, every))
                metrics = httpx.get(f"{server.url}/metrics").text
            found.kills += killed
            _add(found, metrics)
            wrong = [(dtype, length, index) for index, body in enumerate(bodies) if body != wanted[index]]
            found.answers, found.wrong = found.answers + len(bodies), found.wrong + wrong
            shares = accepted(metrics)
            report(f"{dtype} --speculate {length}: {len(bodies)} answers, {len(wrong)} wrong, {killed} kills, accepted {shares}")
    return found


def _add(found: Found, metrics: str) -> None:
    found.steps += int(sum(value for _, value in series(metrics, "tgi_batch_inference_success")))
    found.tokens += int(sum(value for _, value in series(metrics, "tgi_batch_generated_tokens")))
    found.accepted.update({source: int(count) for source, count in accepted(metrics).items()})


def told(found: Found) -> list[str]:
    """Print the figures; what went wrong."""
    print(
        f"{found.answers} answers, {len(found.wrong)} wrong: {found.wrong}; {found.kills} kills; {found.tokens} tokens in "
        f"{found.steps} steps; accepted {dict(found.accepted)}"
    )
    missing = [source for source in ("grammar", "prediction", "ngram", "suffix") if not found.accepted[source]]
    return [f"wrong answers: {found.wrong}"] * bool(found.wrong) + [f"no draft was accepted from {source}" for source in missing]


def main() -> int:
    """The soak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES)
    chosen = parser.parse_args()
    return bool(told(speculation(chosen.requests, chosen.kills, chosen.dtypes)))


if __name__ == "__main__":
    sys.exit(main())
