"""Errors that come late, when a step is read, while clients are served: each is told of it, or gets the answer that it would have got.

    python -m tests.soak.late [--faults N] [--scale X] [BACKEND...]

Out of memory, an InvalidRequest that names nobody and a lost device come at random steps. Ends with 0 only if no answer differs from
that of a server without faults, and if the server is ready afterwards and answers all of it once more.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from dataclasses import dataclass, field

import httpx

from tests.serve.process import TGI, ServerProcess, served
from tests.soak.kills import PATIENCE_S, REQUESTS, STREAMS, Answer, ask

BACKENDS = ("reference", "cpu")
SHARES = {"oom": 0.03, "invalid": 0.004, "lost": 0.004}
"""Of the steps that are read, the share that raises each error."""
INJECTED = "injected fault: "


@dataclass
class Seen:
    """What clients saw. `told` are failures by what was said."""

    answers: int = 0
    wrong: list[int] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)
    health: Counter[int] = field(default_factory=Counter)


def injected(server: ServerProcess) -> int:
    """How many faults there were."""
    return sum(INJECTED in line for line in server.lines)


async def told_or(client: httpx.AsyncClient, index: int) -> Answer | str:
    """An answer, or what is said in place of one."""
    try:
        return await ask(client, index, lambda: None)
    except httpx.HTTPStatusError as error:
        return str(error.response.status_code)
    except AssertionError as error:  # an event that tells of a failure
        return str(error).partition("error_type")[2][:40]


async def answers(url: str) -> list[Answer | str]:
    """All requests once, together."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
        return list(await asyncio.gather(*(told_or(client, index) for index in range(REQUESTS))))


async def course(server: ServerProcess, wanted: list[Answer | str], faults: int) -> Seen:
    """Ask until there were so many faults."""
    seen, place = Seen(), 0
    limits = httpx.Limits(max_connections=2 * STREAMS)
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S, limits=limits) as client:

        async def ask_on() -> None:
            nonlocal place
            while injected(server) < faults:
                index, place = place % REQUESTS, place + 1
                found = await told_or(client, index)
                if isinstance(found, str):
                    seen.told[found] += 1
                else:
                    seen.answers += 1
                    seen.wrong += [index] if found != wanted[index] else []
                seen.health[(await client.get("/health")).status_code] += 1

        await asyncio.gather(*(ask_on() for _ in range(STREAMS)))
    return seen


async def until_ready(url: str) -> None:
    """The last fault may have been a lost device."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while (await client.get("/health")).status_code != 200:
            await asyncio.sleep(0.05)


def tried(backend: str, faults: int, seed: int, tgi: tuple[str, ...] = TGI, scale: float = 1.0) -> tuple[Seen, list[str]]:
    """The whole of it, and what was wrong. `scale` multiplies the shares of steps that fail."""
    flags = ("--backend", backend, "--dtype", "float32", "--shard-restarts", "1000")
    with served(*flags, tgi=tgi) as server:
        wanted = asyncio.run(answers(server.url))
    shares = enumerate(SHARES.items())
    schedule = ";".join(f"{error}:p={share * scale},seed={seed + place},when=rows" for place, (error, share) in shares)
    with served(*flags, "--inject-faults", schedule, tgi=tgi) as server:
        seen = asyncio.run(course(server, wanted, faults))
        asyncio.run(until_ready(server.url))
        status = server.stop()
    wrong = [f"{backend}: answer {index} differs" for index in sorted(set(seen.wrong))]
    wrong += [f"{backend}: {each}" for each in wanted if isinstance(each, str)]
    wrong += [f"{backend}: exit status {status}"] if status else []
    wrong += [f"{backend}: /health said {each}" for each in seen.health if each not in (200, 503)]
    return seen, wrong


def main() -> int:
    """The soak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="multiply the share of steps that fail, for backends whose steps are slow"
    )
    parser.add_argument("backends", nargs="*", default=BACKENDS)
    given = parser.parse_args()
    found: list[str] = []
    for backend in given.backends:
        seen, wrong = tried(backend, given.faults, 1, scale=given.scale)
        print(f"{backend}: {given.faults} faults, {seen.answers} answers, {len(wrong)} wrong, told {dict(seen.told)}", flush=True)
        found += wrong
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
