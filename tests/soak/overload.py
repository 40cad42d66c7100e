"""More requests than the server can answer: `python -m tests.soak.overload --seconds 15 --json bench/results/reliability/overload.json`.

The server is `tgi serve` with a device that takes a fixed time for each step, so that the capacity is known. The load comes from a
process of its own that runs only when nobody else wants to (`tests.soak.flood`). What clients see is measured by this process, which
asks now and then, so that its times are the server's and not those of a busy generator; it tells how late it was itself.

Parts: as many clients as there is room for, which gives the peak; ten and a hundred times the capacity, whether or not requests are
answered; 640 clients that try again at once; a polite client behind such a flood, which may say `high`; clients that read nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.front.null_backend import installed
from bench.results import save
from tests.serve.process import served
from tests.soak.flood import request

ROWS, STEP_MS, TOKENS = 16, 20.0, 40
PERMITS = 2 * ROWS
CAPACITY = ROWS / (TOKENS * STEP_MS / 1e3)
"""Answers per second that the device can make."""
CROWD, FLOOD, SILENT = 640, 300, 500
FLOODED, POLITE, PROBES = "127.0.0.1", "127.0.0.2", "127.0.0.3"
RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results" / "reliability"


@dataclass
class Seen:
    """What this process saw meanwhile. Times in seconds."""

    refusals: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    metrics: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    """How much later than asked for this process woke up: times of that size are nobody's."""


@dataclass
class Answer:
    """A status, the seconds that it took, and the headers."""

    status: int
    seconds: float
    headers: bytes


@dataclass
class Server:
    """A running one."""

    port: int
    process: psutil.Process

    def cpu_s(self) -> float:
        """What the process that speaks HTTP has used."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


async def ask(port: int, data: bytes, source: str = FLOODED) -> Answer:
    """One request on a connection of its own; the answer says its length."""
    start = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    try:
        writer.write(data)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
    finally:
        writer.close()
    return Answer(int(head.split(b" ")[1]), time.monotonic() - start, head)


def get(path: str) -> bytes:
    """A request for a probe."""
    return f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()


async def look(port: int, seen: Seen) -> None:
    """Ask now and then, until cancelled."""
    while True:
        start = time.monotonic()
        await asyncio.sleep(0.05)
        seen.late.append(time.monotonic() - start - 0.05)
        for path, times in (("/health", seen.health), ("/metrics", seen.metrics)):
            answer = await ask(port, get(path), PROBES)
            assert answer.status == 200, path
            times.append(answer.seconds)
        refused = await ask(port, request(TOKENS))
        if refused.status == 429:
            assert b"retry-after: " in refused.headers and b"retry-after-ms: " in refused.headers
            seen.refusals.append(refused.seconds)


@asynccontextmanager
async def flooded(port: int, seconds: float, *flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """While the load comes; it ends by itself."""
    command = [sys.executable, "-m", "tests.soak.flood", str(port), str(seconds), "--tokens", str(TOKENS), *flags]
    child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    await child.stdout.readline()
    try:
        yield child
    finally:
        if child.returncode is None:
            await child.wait()


async def load(server: Server, name: str, seconds: float, watched: bool, *flags: str) -> dict[str, Any]:
    """A part with a load: what came of it, as the load counts it, and what was seen meanwhile."""
    seen, used = Seen(), server.cpu_s()
    async with flooded(server.port, seconds, *flags) as child:
        looking = asyncio.create_task(look(server.port, seen)) if watched else None
        assert child.stdout is not None
        counts = json.loads(await child.stdout.readline())
        used = server.cpu_s() - used
        if looking is not None:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            if not looking.cancelled() and (error := looking.exception()) is not None:
                raise error
    answered = counts["statuses"].get("200", 0) / counts["seconds"]
    print(f"{name}: {counts}", flush=True)
    return {"part": name, "answered": answered, "cpu_share": used / counts["seconds"], **counts, **asdict(seen)}


async def polite(port: int, until: float) -> list[int]:
    """How many tries each request of a client took that does as it is told."""
    tries: list[int] = []
    while time.monotonic() < until:
        for count in range(1, 100):
            answer = await ask(port, request(TOKENS), POLITE)
            if answer.status == 200:
                tries.append(count)
                break
            await asyncio.sleep(int(answer.headers.partition(b"retry-after-ms: ")[2].split(b"\r\n")[0]) / 1000)
    return tries


async def behind(server: Server, name: str, seconds: float, *flags: str) -> dict[str, Any]:
    """A polite client behind a flood."""
    async with flooded(server.port, seconds + 1, "--clients", str(FLOOD), *flags) as child:
        await asyncio.sleep(0.5)
        tries = await polite(server.port, time.monotonic() + seconds)
        assert child.stdout is not None
        counts = json.loads(await child.stdout.readline())
    print(f"{name}: {tries}, {counts}", flush=True)
    return {"part": name, "tries": tries, **counts}


async def silent(server: Server, count: int) -> dict[str, Any]:
    """Clients that read nothing, then one that does: how long it waits, once and again."""
    with ExitStack() as stack:
        for _ in range(count):
            own = stack.enter_context(socket.socket())
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            own.bind((FLOODED, 0))
            own.connect(("127.0.0.1", server.port))
            own.sendall(request(3000, path="/generate_stream"))
        waits = [await ask(server.port, request(TOKENS), POLITE) for _ in range(3)]
    assert all(answer.status == 200 for answer in waits), [answer.status for answer in waits]
    return {"part": "silent", "clients": count, "waits": [answer.seconds for answer in waits]}


@contextmanager
def serving(permits: int = PERMITS, rows: int = ROWS, step_ms: float = STEP_MS) -> Iterator[Server]:
    """The server in processes of its own."""
    limits = ("--max-concurrent-requests", str(permits), "--max-batch-size", str(rows))
    with installed(step_ms) as extra, served("--backend", "null", *limits, extra=extra) as server:
        yield Server(int(server.url.rpartition(":")[2]), psutil.Process(server.child.pid))


async def course(server: Server, seconds: float, crowd: int = CROWD) -> list[dict[str, Any]]:
    """The parts with a load, one after the other."""
    await ask(server.port, request(TOKENS))
    return [
        await load(server, "peak", seconds, False, "--clients", str(PERMITS)),
        await load(server, "10x", seconds, True, "--rate", str(10 * CAPACITY)),
        await load(server, "100x", seconds, True, "--rate", str(100 * CAPACITY)),
        await load(server, "crowd", seconds, True, "--clients", str(crowd)),
        await behind(server, "flood", seconds),
        await behind(server, "flood high", seconds, "--priority", "high"),
    ]


def main() -> None:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--json", type=Path, default=RESULTS / "overload.json")
    given = parser.parse_args()
    with serving() as server:
        rows = asyncio.run(course(server, given.seconds))
    with serving(2 * SILENT, ROWS, 1.0) as server:
        rows.append(asyncio.run(silent(server, SILENT)))
    what = {
        "rows_on_device": ROWS,
        "step_ms": STEP_MS,
        "tokens": TOKENS,
        "permits": PERMITS,
        "seconds": given.seconds,
        "rows": rows,
    }
    save(given.json.parent, given.json.stem, what, done=True)


if __name__ == "__main__":
    main()
