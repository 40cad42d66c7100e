"""A cheap load generator: raw sockets, timestamps on arrival, all parsing afterwards.

python -m bench.serving.stream < PLAN > OUTCOMES       (JSON; run as a separate process)
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import httptools

_TOKEN_MARKS = (b'"token"', b'"text"', b'"content"')


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: its send time in seconds, path and JSON body. `group` is copied to its outcome."""

    at: float
    path: str
    body: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Status, arrival times of events in seconds since the scheduled send time, and the last events, unparsed."""

    group: str
    status: int
    events: tuple[float, ...]
    last: tuple[str, ...]
    sent_at: float
    """Time on the load generator's clock, in seconds."""


@dataclass(frozen=True, slots=True)
class Load:
    """All outcomes, seconds from first request to last byte, and the share of a core that the load generator used."""

    outcomes: tuple[Outcome, ...]
    seconds: float
    client_share: float


class _Connection(asyncio.Protocol):
    """Stores received data with timestamps until the server closes the connection."""

    def __init__(self) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport

    def send(self, data: bytes) -> None:
        """Send a complete request."""
        assert self._transport is not None  # noqa: S101
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Store data with a timestamp."""
        self.pieces.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        """The answer is complete."""
        if not self.closed.done():
            self.closed.set_result(None)


class _Reader:
    """Parses the events of one answer with the times at which they were complete."""

    def __init__(self) -> None:
        self.events: list[tuple[float, bytes]] = []
        self._now, self._rest = 0.0, b""
        self.parser = httptools.HttpResponseParser(self)

    def feed(self, now: float, data: bytes) -> None:
        """Parse received bytes."""
        self._now = now
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Parse part of the decoded body."""
        *whole, self._rest = (self._rest + body.replace(b"\r\n", b"\n")).split(b"\n\n")
        self.events += [(self._now, event) for event in whole if event.startswith(b"data:")]


def read(pieces: list[tuple[float, bytes]], ask: Ask, start: float) -> Outcome:
    """Outcome of one request, with times relative to its scheduled send time."""
    reader = _Reader()
    for now, data in pieces:
        reader.feed(now, data)
    status = reader.parser.get_status_code() if pieces else 0
    due = start + ask.at
    payloads = [(now, event[5:].strip()) for now, event in reader.events]
    times = tuple(now - due for now, payload in payloads if any(mark in payload for mark in _TOKEN_MARKS))
    return Outcome(ask.group, status, times, tuple(payload.decode() for _, payload in payloads[-3:]), due)


async def offer(host: str, port: int, asks: list[Ask]) -> Load:
    """Send each request at its time, on a separate connection. All connections are opened before the first request."""
    loop = asyncio.get_running_loop()
    connections = [(await loop.create_connection(_Connection, host, port))[1] for _ in asks]
    heads = f"Host: {host}:{port}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    requests = [f"POST {ask.path} HTTP/1.1\r\n{heads}Content-Length: {len(ask.body.encode())}\r\n\r\n{ask.body}" for ask in asks]
    gc.collect()
    gc.disable()
    used, start = time.process_time(), time.perf_counter()
    for ask, connection, request in zip(asks, connections, requests, strict=True):
        due = start + ask.at
        if due > time.perf_counter():
            await asyncio.sleep(due - time.perf_counter())
        connection.send(request.encode())
    await asyncio.gather(*(connection.closed for connection in connections))
    used = time.process_time() - used
    end = max(connection.pieces[-1][0] for connection in connections if connection.pieces)
    outcomes = tuple(read(connection.pieces, ask, start) for ask, connection in zip(asks, connections, strict=True))
    return Load(outcomes, end - start, used / (end - start))


def main() -> None:
    """Read the plan and write the outcomes."""
    plan: dict[str, Any] = json.load(sys.stdin)
    load = asyncio.run(offer(plan["host"], plan["port"], [Ask(**ask) for ask in plan["asks"]]))
    json.dump(asdict(load), sys.stdout)


if __name__ == "__main__":
    main()
