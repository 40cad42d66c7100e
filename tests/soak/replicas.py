"""Three replicas under load, one of which is killed every few seconds; then all of them replaced one after another.

    python -m tests.soak.replicas [--kills N] [--every SECONDS] [--streams N]

Ends with 0 only if every answer is the one of an undisturbed run, and if goodput, in tokens of correct answers per second, is at least 60 %
of the undisturbed server's during the kills, and back afterwards. Steps of the toy model take as long as those of a device, so that it is
not this machine's cores that replicas share.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from tests.serve.process import ServerProcess, served
from tests.soak.kills import PATIENCE_S, Answer, ask, shards
from tgi_core.cli.serving import REPLACE_SIGNAL

REPLICAS = 3
STREAMS = 96
ASKED = [index for index in range(48) if index % 3]
"""Numbers of the requests, all of them streams."""
_LEAST_DURING, _LEAST_AFTER = 0.6, 0.97
"""Goodput relative to that before. Two undisturbed measurements differ by a few percent."""


@contextmanager
def three(*more: str, rows: int = 32, step_ms: int = 80) -> Iterator[ServerProcess]:
    """A server with three replicas that run so many rows each, in steps that take so long."""
    flags = ("--replicas", str(REPLICAS), "--backend", "reference", "--max-concurrent-requests", "512")
    device = ("--max-batch-size", str(rows), "--inject-faults", f"slow:every=1,ms={step_ms}")
    with served(*flags, *device, *more) as server:
        yield server


@dataclass
class Load:
    """Clients that ask for the same answers over and over."""

    client: httpx.AsyncClient
    wanted: dict[int, Answer]
    tokens: int = 0
    answers: int = 0
    wrong: list[int] = field(default_factory=list)
    _ending: bool = False

    def seen(self) -> None:
        """Count a token."""
        self.tokens += 1

    async def stream(self, numbers: Iterator[int]) -> None:
        """Ask until told to end."""
        while not self._ending:
            index = next(numbers)
            answer = await ask(self.client, index, self.seen)
            self.answers += 1
            if answer != self.wanted[index]:
                self.wrong.append(index)

    async def rate(self, seconds: float) -> float:
        """Tokens per second during so many seconds."""
        before, begun = self.tokens, time.monotonic()
        await asyncio.sleep(seconds)
        return (self.tokens - before) / (time.monotonic() - begun)

    def end(self) -> None:
        """Ask for nothing more."""
        self._ending = True


@dataclass
class Report:
    """What clients saw: answers, those that were wrong, and tokens per second."""

    answers: int
    wrong: list[int]
    before: float
    during: float
    after: float

    def __str__(self) -> str:
        during, after = (f"{each:.0f} ({each / self.before:.0%})" for each in (self.during, self.after))
        return (
            f"{self.answers} answers, {len(self.wrong)} wrong; tokens/s: {self.before:.0f} before, {during} during, {after} after"
        )

    def complaints(self) -> list[str]:
        """What went wrong."""
        found = [f"request {index} got another answer" for index in self.wrong]
        if self.during < _LEAST_DURING * self.before:
            found.append(f"goodput fell to {self.during / self.before:.0%}")
        if self.after < _LEAST_AFTER * self.before:
            found.append(f"goodput was {self.after / self.before:.0%} afterwards")
        return found


async def disturb(url: str, streams: int, disturbance: Callable[[], asyncio.Future[None]], calm_s: float) -> Report:
    """Measure under load, before, during and after a disturbance; `calm_s` seconds before and after."""
    limits = httpx.Limits(max_connections=2 * streams)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits) as client:
        wanted = await asyncio.gather(*(ask(client, index, lambda: None) for index in ASKED))
        load = Load(client, dict(zip(ASKED, wanted, strict=True)))
        numbers = itertools.cycle(ASKED)
        clients = [asyncio.create_task(load.stream(numbers)) for _ in range(streams)]
        measuring = asyncio.create_task(_measure(client, load, disturbance, calm_s))
        done, _ = await asyncio.wait({measuring, *clients}, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        return Report(load.answers, load.wrong, *measuring.result())


async def _measure(
    client: httpx.AsyncClient, load: Load, disturbance: Callable[[], asyncio.Future[None]], calm_s: float
) -> tuple[float, float, float]:
    await load.rate(calm_s / 4)
    before = await load.rate(calm_s)
    begun, tokens = time.monotonic(), load.tokens
    await disturbance()
    during = (load.tokens - tokens) / (time.monotonic() - begun)
    await all_serving(client)
    await load.rate(calm_s / 4)
    after = await load.rate(calm_s)
    load.end()
    return before, during, after


async def all_serving(client: httpx.AsyncClient) -> None:
    """Wait until every replica serves."""
    while not all(each["phase"] == "serving" for each in (await client.get("/info")).json()["replicas"]):
        await asyncio.sleep(0.05)


async def kill_one_after_another(url: str, server: int, kills: int, every_s: float, chance: random.Random) -> None:
    """Kill a shard so many times, at this pace or slower: not before all of them serve again, so that each kill is a loss."""
    async with httpx.AsyncClient(base_url=url) as client:
        for _ in range(kills):
            await all_serving(client)
            os.kill(chance.choice([pid for pid in shards(server) if lives(pid)]), signal.SIGKILL)
            await asyncio.sleep(every_s)


async def replace_all(url: str, server: int) -> None:
    """Ask the server to replace all shards, and wait until it has."""
    before = set(shards(server))
    os.kill(server, REPLACE_SIGNAL)
    async with httpx.AsyncClient(base_url=url) as client:
        while True:
            states = (await client.get("/info")).json()["replicas"]
            if before.isdisjoint(shards(server)) and all(each["phase"] == "serving" for each in states):
                return
            await asyncio.sleep(0.05)


def lives(pid: int) -> bool:
    """Whether a process runs, and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def trial(kills: int, every_s: float, streams: int, step_ms: int = 80) -> list[str]:
    """Kill, then replace; what went wrong."""
    with three(step_ms=step_ms) as server:
        pid = server.child.pid
        killed = asyncio.run(
            disturb(
                server.url,
                streams,
                lambda: asyncio.ensure_future(kill_one_after_another(server.url, pid, kills, every_s, random.Random(0))),
                calm_s=20.0,
            )
        )
        print(f"{kills} × SIGKILL, one every {every_s:.0f} s, {streams} streams: {killed}")
        replaced = asyncio.run(disturb(server.url, streams, lambda: asyncio.ensure_future(replace_all(server.url, pid)), 20.0))
        print(f"all replaced in turn: {replaced}")
        ended = server.stop()
    complaints = killed.complaints() + replaced.complaints()
    return complaints + ([] if ended == 0 else [f"exit status {ended}"])


def run(minutes: float) -> list[str]:
    """One kill every five seconds."""
    return trial(max(12, int(minutes * 12)), 5.0, STREAMS)


def command(description: str | None, trial: Callable[[int, float, int, int], list[str]], kills: int, every_s: float) -> int:
    """Run a trial as the command line asks; the exit status."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--every", type=float, default=every_s)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--step-ms", type=int, default=80)
    chosen = parser.parse_args()
    complaints = trial(chosen.kills, chosen.every, chosen.streams, chosen.step_ms)
    print("\n".join(complaints))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(command(__doc__, trial, 12, 5.0))
