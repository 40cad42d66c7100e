"""A shard that is killed again and again under load: no request may notice.

    python -m tests.soak.kills [--kills N] [--backend NAME]

Ends with 0 only if every answer is the one of an undisturbed run. Prints how long clients waited.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

from tests.serve.process import served

PROMPTS = (
    "The capital of France is",
    "Once upon a time",
    "What is 7 plus 5?",
    "Q",
    "Tell me about the weather and the sea. " * 6,
)
REQUESTS = 24
"""Different ones; they come again and again."""
STREAMS = 12
"""At once."""
_FLOOR_S = 5.0
"""How soon a shard that was stopped counts as hung."""
PATIENCE_S = 1800.0
"""Of clients: an answer may meet every blow."""
_FEWEST, _MOST = 100, 600
"""Tokens that clients see between two kills."""

Strike = Callable[[int], None]
"""What is done to the shard with that process id."""

Answer = tuple[list[int], str, str]
"""Token ids, text, and why it ended."""


def body(index: int) -> dict[str, Any]:
    """Request number `index`: lengths, prompts and sampling mixed, every other one with a seed."""
    parameters: dict[str, Any] = {"max_new_tokens": 60 + 17 * index % 240, "details": True}
    if index % 2:
        parameters |= {"do_sample": True, "temperature": 1.1, "top_p": 0.95, "seed": index}
    if index % 4 == 3:
        parameters |= {"repetition_penalty": 1.2, "top_k": 40}
    if index % 5 == 2:
        parameters |= {"stop": ["zebra"]}
    return {"inputs": PROMPTS[index % len(PROMPTS)], "parameters": parameters}


async def ask(client: httpx.AsyncClient, index: int, seen: Callable[[], None]) -> Answer:
    """An answer, every third one in one piece. `seen` is called for each token that arrives."""
    if index % 3 == 0:
        response = await client.post("/generate", json=body(index))
        response.raise_for_status()
        whole = response.json()
        return [token["id"] for token in whole["details"]["tokens"]], whole["generated_text"], whole["details"]["finish_reason"]
    ids: list[int] = []
    async with client.stream("POST", "/generate_stream", json=body(index)) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                event = json.loads(line[5:])
                if "token" not in event:
                    raise AssertionError(f"request {index}: {event}")
                ids.append(event["token"]["id"])
                seen()
    return ids, event["generated_text"], event["details"]["finish_reason"]


@dataclass
class Disturbance:
    """What clients saw."""

    answers: int = 0
    wrong: list[int] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    """Seconds from each blow until the next token that a client saw."""


class Load:
    """Clients that ask for the same answers over and over."""

    def __init__(self, client: httpx.AsyncClient, wanted: list[Answer]) -> None:
        self.result = Disturbance()
        self._client, self._wanted = client, wanted
        self._tokens = 0
        self._news = asyncio.Event()
        self._next = 0
        self._ending = False

    def seen(self) -> None:
        """A token has arrived somewhere."""
        self._tokens += 1
        self._news.set()

    async def tokens(self, count: int) -> None:
        """Wait until so many more have arrived."""
        until = self._tokens + count
        while self._tokens < until:
            self._news.clear()
            await self._news.wait()

    async def client(self) -> None:
        """Ask until told to end."""
        while not self._ending:
            index, self._next = self._next % len(self._wanted), self._next + 1
            answer = await ask(self._client, index, self.seen)
            self.result.answers += 1
            if answer != self._wanted[index]:
                self.result.wrong.append(index)

    async def run(self, blows: int, server: int, strike: Strike, rng: random.Random) -> Disturbance:
        """Strike so many shards while clients are served; the result once all of these have ended."""
        clients = [asyncio.create_task(self.client()) for _ in range(STREAMS)]
        striking = asyncio.create_task(self._strike(blows, server, strike, rng))
        done, _ = await asyncio.wait({striking, *clients}, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        return self.result

    async def _strike(self, blows: int, server: int, strike: Strike, rng: random.Random) -> None:
        shard = await another_shard(server, 0)
        for _ in range(blows):
            await self.tokens(rng.randint(_FEWEST, _MOST))
            start = time.monotonic()
            try:
                strike(shard)
            except ProcessLookupError:  # it has hung under load, and the server has replaced it
                shard = await another_shard(server, shard)
                strike(shard)
            shard = await another_shard(server, shard)
            while (await self._client.get("/health")).status_code != 200:  # tokens until here may be the last one's
                await asyncio.sleep(0.02)
            await self.tokens(1)
            self.result.waits.append(time.monotonic() - start)
        self._ending = True


def shards(server: int) -> list[int]:
    """The process ids of the shards that a server has at present, dead ones that nobody has buried included."""
    return [child.pid for child in psutil.Process(server).children() if is_shard(child)]


def is_shard(process: psutil.Process) -> bool:
    """Whether it is one, by its command; of a dead one nothing but its parent is known."""
    try:
        command = process.cmdline()
    except psutil.Error:
        return True
    return not command or "shard" in command


async def another_shard(server: int, before: int) -> int:
    """Wait until a server has a living shard other than that one."""
    while not (found := [pid for pid in shards(server) if pid != before and lives(pid)]):
        await asyncio.sleep(0.01)
    return found[0]


def lives(pid: int) -> bool:
    """Whether a process can still be told from others."""
    try:
        return bool(psutil.Process(pid).cmdline())
    except psutil.Error:
        return False


def sent(number: int) -> Strike:
    """That signal."""
    return lambda shard: os.kill(shard, number)


kill = sent(signal.SIGKILL)


async def disturb(url: str, server: int, blows: int, strike: Strike, seed: int = 0) -> Disturbance:
    """Compare answers under blows with those before."""
    limits = httpx.Limits(max_connections=2 * STREAMS)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits) as client:
        wanted = await asyncio.gather(*(ask(client, index, lambda: None) for index in range(REQUESTS)))
        return await Load(client, list(wanted)).run(blows, server, strike, random.Random(seed))


def main() -> int:
    """The soak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--signal", default="KILL", choices=["KILL", "STOP", "SEGV", "ABRT"])
    chosen = parser.parse_args()
    with served("--backend", chosen.backend, "--dtype", "float32", "--watchdog-floor", str(_FLOOR_S)) as server:
        result = asyncio.run(disturb(server.url, server.child.pid, chosen.kills, sent(signal.Signals[f"SIG{chosen.signal}"])))
        healthy = httpx.get(f"{server.url}/health").status_code == 200
        left = len(shards(server.child.pid))
        ended = server.stop()
    waits = sorted(result.waits)
    print(
        f"{chosen.kills} × SIG{chosen.signal}, {result.answers} answers, {len(result.wrong)} wrong: {sorted(set(result.wrong))}"
    )
    print(
        f"seconds without a token: median {statistics.median(waits):.2f}, worst {waits[-1]:.2f}; at start {server.ready_seconds:.2f}"
    )
    print(f"healthy afterwards: {healthy}; shards: {left}; exit status {ended}")
    return 0 if not result.wrong and healthy and left == 1 and ended == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
