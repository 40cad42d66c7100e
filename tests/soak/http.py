"""Soak B: `tgi serve` in a process of its own, clients of all manners, faults in the backend; what the process holds must not grow."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

from tests.serve.process import served
from tests.soak.slope import slope

FAULTS = ";".join(
    [
        "oom:p=0.01",
        "oom:p=0.01,when=rows",
        "capacity:p=0.01",
        "compile:p=0.01,when=late",
        "nan:p=0.002",
        "sampler:p=0.01",
        "mask:p=0.01",
        "token:p=0.01",
        "text:p=0.01",
        "memory:p=0.01",
        "slow:p=0.01,ms=20",
    ]
)
CLIENTS = 16
BYTES_PER_REQUEST = 100.0
"""1 MB per 10,000 requests."""
TOTAL_BYTES = 50_000_000
EXPECTED = {200, 422, 424, 429, 503}
"""What a client may be answered while the backend fails."""


@dataclass(slots=True)
class Holding:
    """What the server's process has, at rest, and the memory of its shard's."""

    requests: int
    rss: int
    shard_rss: int
    fds: int
    threads: int
    series: int


@dataclass(slots=True)
class Report:
    """What a run has seen."""

    holdings: list[Holding] = field(default_factory=list)
    answers: dict[int, int] = field(default_factory=dict)
    left: int = 0

    @property
    def requests(self) -> int:
        """Calls that were answered or left."""
        return sum(self.answers.values()) + self.left

    def wrong(self, rss: bool) -> list[str]:
        """What grew, or was answered that should not be. `rss` needs many requests to say anything."""
        first, last = self.holdings[len(self.holdings) // 3], self.holdings[-1]
        found = [f"answer {status}: {count} times" for status, count in self.answers.items() if status not in EXPECTED]
        for name in ("fds", "threads", "series"):
            before, after = getattr(first, name), getattr(last, name)
            if after > before:
                found.append(f"{name}: {before} at first, {after} at last")
        if rss:
            for name, process in (("rss", "the router's"), ("shard_rss", "the shard's")):
                if self.slope(name) > BYTES_PER_REQUEST:
                    found.append(f"{process} memory grows by {self.slope(name):.0f} bytes per request")
                if getattr(last, name) - getattr(first, name) > TOTAL_BYTES:
                    found.append(f"{process} memory grew by {(getattr(last, name) - getattr(first, name)) / 1e6:.0f} MB")
        return found

    def slope(self, name: str) -> float:
        """Bytes per request by which a memory grew, after a warm-up of a third."""
        return slope([(float(item.requests), float(getattr(item, name))) for item in self.holdings[len(self.holdings) // 3 :]])


class Crowd:
    """Clients that ask, read, give up, and send what is wrong."""

    def __init__(self, url: str, seed: int) -> None:
        self.random = random.Random(seed)
        self._url = url
        self.report = Report()

    async def ask(self, requests: int) -> None:
        """So many calls, at most `CLIENTS` at once, on connections that end with them."""
        async with httpx.AsyncClient(base_url=self._url, timeout=60) as client:
            gate = asyncio.Semaphore(CLIENTS)

            async def one() -> None:
                async with gate:
                    await self.call(client)

            await asyncio.gather(*(one() for _ in range(requests)))

    async def call(self, client: httpx.AsyncClient) -> None:
        chance = self.random.random()
        body = {"inputs": f"Once {self.random.randrange(50)}", "parameters": {"max_new_tokens": self.random.randint(1, 24)}}
        if chance < 0.1:
            body["parameters"] = {"temperature": -1}
        if chance < 0.6:
            self.note(await client.post("/generate", json=body))
        elif chance < 0.8:
            self.note(await client.post("/v1/completions", json={"prompt": "a b", "max_tokens": 8, "model": "x"}))
        else:
            await self.stream(client, "/generate_stream", body, leaves=chance > 0.9)

    async def stream(self, client: httpx.AsyncClient, path: str, body: object, leaves: bool, **more: Any) -> None:
        """A stream, which is read to its end, or left after its first line."""
        async with client.stream("POST", path, json=body, **more) as response:
            async for _ in response.aiter_lines():
                if leaves:
                    self.report.left += 1
                    return
            self.note(response)

    def note(self, response: httpx.Response) -> None:
        """Count an answer."""
        self.report.answers[response.status_code] = self.report.answers.get(response.status_code, 0) + 1


def at_rest(process: psutil.Process, url: str, requests: int) -> Holding:
    """What the process has once nobody asks any more and every connection is gone."""
    end = time.monotonic() + 30
    while True:
        text = httpx.get(f"{url}/metrics", headers={"connection": "close"}).text
        idle = re.search(r"^tgi_batch_current_size 0(\.0)?$", text, re.M) and re.search(
            r"^tgi_kv_blocks_used 0(\.0)?$", text, re.M
        )
        if (
            idle and not [item for item in process.net_connections() if item.status == psutil.CONN_ESTABLISHED]
        ) or time.monotonic() > end:
            break
    assert idle, "rows or blocks are left when nobody asks any more"
    # a kind of error is a series of its own from the first one on, and there are as many as the contract has
    series = sum(not line.startswith(("#", "tgi_backend_verb_failure")) for line in text.splitlines())
    shard = sum(child.memory_info().rss for child in process.children() if "shard" in child.cmdline())
    return Holding(requests, process.memory_info().rss, shard, process.num_fds(), process.num_threads(), series)


def faulty(rounds: int, requests: int, seconds: float = 0.0) -> Report:
    """Over a backend that fails now and then."""
    arguments = ("--backend", "reference", "--inject-faults", FAULTS, "--max-total-tokens", "64")
    return soak(Crowd, arguments, rounds, requests, seconds)


def soak(
    crowds: type[Crowd],
    arguments: Sequence[str],
    rounds: int,
    requests: int,
    seconds: float = 0.0,
    seed: int = 1,
    patience: float = 120,
) -> Report:
    """Rounds of so many requests each, at least `seconds` long in all, to a server with those arguments; at rest between rounds."""
    with served(*arguments, patience=patience) as server:
        process, crowd, start = psutil.Process(server.child.pid), crowds(server.url, seed), time.monotonic()
        while len(crowd.report.holdings) < rounds or time.monotonic() - start < seconds:
            asyncio.run(crowd.ask(requests))
            crowd.report.holdings.append(at_rest(process, server.url, crowd.report.requests))
            del server.lines[:-100]
        assert server.child.poll() is None
    return crowd.report


def run(minutes: float) -> list[str]:
    """The long form. What went wrong."""
    report = faulty(rounds=30, requests=500, seconds=60 * minutes)
    print(f"{report.requests} requests, answers {report.answers}, {report.left} disconnected; at last {report.holdings[-1]}")
    return report.wrong(rss=True)
