"""A cheap load generator: raw sockets, timestamps on arrival, all parsing afterwards.

python -m tgi_core.benchmark.generator < PLAN > LINES       (run as a separate process)

PLAN is a JSON object; each of LINES is one too: `{"progress": …}` a few times per second if asked for, then `{"load": …}`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import ssl
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, cast

import httptools

from tgi_core.benchmark.target import Target

CONNECT_AHEAD_S = 1.0
"""Seconds before its time at which a request's connection is opened."""
TELL_EVERY_S = 0.25
RECENT = 200
"""Requests whose times to first token are told while the load runs."""

_TOKEN = re.compile(
    rb'"token":|"(?:text|content|reasoning|reasoning_content)":\s*"(?!")|"text":\s*""(?=.*"finish_reason":\s*null)', re.DOTALL
)
"""In events that bring a token: OpenAI's streams begin and end with chunks whose text is empty. A completion's chunk without text that
is not its last one is a token without text, such as a special one."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: its send time in seconds, path and JSON body. `group` is copied to its outcome."""

    at: float
    path: str
    body: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Status (0 without an answer), arrival times of events in seconds since the scheduled send time, and the last events, unparsed.

    `ended` is the time of the last byte, likewise; `error` is what an answer without events says, or why there is none.
    """

    group: str
    status: int
    events: tuple[float, ...]
    last: tuple[str, ...]
    sent_at: float
    """Time on the load generator's clock, in seconds."""
    ended: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """All outcomes, seconds from first request to last byte, and the share of a core that the load generator used."""

    outcomes: tuple[Outcome, ...]
    seconds: float
    client_share: float


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a load is: requests sent and answered, events received, and the median time to first event of recent requests."""

    seconds: float
    sent: int
    answered: int
    events: int
    first_s: float | None


class _Tally:
    """Counts while a load runs."""

    def __init__(self) -> None:
        self.answered = self.events = 0
        self.first: deque[float] = deque(maxlen=RECENT)


class _Connection(asyncio.Protocol):
    """Stores received data with timestamps until the server closes the connection."""

    def __init__(self, tally: _Tally) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.due, self.error = 0.0, ""
        self._tally = tally
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)

    def send(self, data: bytes) -> None:
        """Send a complete request."""
        if self._transport is not None:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Store data with a timestamp."""
        now = time.perf_counter()
        if not self.pieces:
            self._tally.first.append(now - self.due)
        self.pieces.append((now, data))
        self._tally.events += data.count(b"\n\n")

    def connection_lost(self, exc: Exception | None) -> None:
        """The answer is complete, or the connection is lost."""
        self.fail("" if exc is None else str(exc))

    def fail(self, reason: str) -> None:
        """Wait no longer."""
        if not self.closed.done():
            self.error = reason
            self._tally.answered += 1
            self.closed.set_result(None)
            if self._transport is not None:
                self._transport.abort()


class _Reader:
    """Parses the events of one answer with the times at which they were complete."""

    def __init__(self) -> None:
        self.events: list[tuple[float, bytes]] = []
        self._now, self.rest = 0.0, b""
        self.parser = httptools.HttpResponseParser(self)

    def feed(self, now: float, data: bytes) -> None:
        """Parse received bytes."""
        self._now = now
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Parse part of the decoded body."""
        *whole, self.rest = (self.rest + body.replace(b"\r\n", b"\n")).split(b"\n\n")
        self.events += [(self._now, event[event.index(b"data:") :]) for event in whole if b"data:" in event]


def read(pieces: Sequence[tuple[float, bytes]], ask: Ask, start: float, error: str = "") -> Outcome:
    """Outcome of one request, with times relative to its scheduled send time."""
    reader = _Reader()
    try:
        for now, data in pieces:
            reader.feed(now, data)
    except httptools.HttpParserError as fault:
        error = error or f"no HTTP: {fault}"
    status = reader.parser.get_status_code() if pieces and not error.startswith("no HTTP") else 0
    due = start + ask.at
    payloads = [(now, event[5:].strip()) for now, event in reader.events]
    times = tuple(now - due for now, payload in payloads if _TOKEN.search(payload))
    last = tuple(payload.decode(errors="replace") for _, payload in payloads[-3:])
    ended = pieces[-1][0] - due if pieces else 0.0
    if not error and (status != 200 or not times):
        if status == 200 and payloads and not any(b'"error"' in payload for _, payload in payloads):
            error = f"an answer without text, in {len(payloads)} events"
        else:
            error = last[-1] if last else reader.rest.decode(errors="replace") or "the connection was closed without an answer"
    return Outcome(ask.group, status, times, last, due, ended, error[:300])


class _Sender:
    """Sends requests to one target, each on a connection of its own."""

    def __init__(self, target: Target, asks: Sequence[Ask]) -> None:
        self._target, self._asks = target, asks
        self._tls = ssl.create_default_context() if target.tls else None
        extra = "".join(f"{name}: {value}\r\n" for name, value in target.headers.items())
        heads = f"Host: {target.name}\r\nContent-Type: application/json\r\nConnection: close\r\n{extra}"
        bodies = [ask.body.encode() for ask in asks]
        self._requests = [
            f"POST {ask.path} HTTP/1.1\r\n{heads}Content-Length: {len(body)}\r\n\r\n".encode() + body
            for ask, body in zip(asks, bodies, strict=True)
        ]
        self._tally = _Tally()
        self.start = self.used = 0.0
        """When the clock was started, and the CPU time of this process at that time."""
        self.sent: list[_Connection] = []
        """By request, as far as they are sent."""

    async def connect(self) -> _Connection:
        """A new connection; one that has failed if there is none."""
        connection = _Connection(self._tally)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection, self._target.host, self._target.port, ssl=self._tls
            )
        except OSError as error:
            connection.fail(f"cannot connect: {error.strerror or error}")
        return connection

    def begin(self) -> None:
        """Start the clock."""
        gc.collect()
        gc.disable()
        self.used, self.start = time.process_time(), time.perf_counter()

    def send(self, connection: _Connection) -> None:
        """Send the next request."""
        connection.send(self._requests[len(self.sent)])
        self.sent.append(connection)

    async def at_their_times(self) -> None:
        """Send each request at its time. Connections are opened before, all of them before the first request if they are due soon."""
        early = sum(ask.at <= CONNECT_AHEAD_S for ask in self._asks)
        opened: asyncio.Queue[_Connection] = asyncio.Queue()
        for _ in range(early):
            opened.put_nowait(await self.connect())

        async def connect_ahead() -> None:
            for ask in self._asks[early:]:
                await asyncio.sleep(max(0.0, self.start + ask.at - CONNECT_AHEAD_S - time.perf_counter()))
                opened.put_nowait(await self.connect())

        self.begin()
        ahead = asyncio.create_task(connect_ahead())
        for ask in self._asks:
            due = self.start + ask.at
            if due > time.perf_counter():
                await asyncio.sleep(due - time.perf_counter())
            connection = opened.get_nowait() if not opened.empty() else await opened.get()
            connection.due = due
            self.send(connection)
        await ahead

    async def by_clients(self, clients: int) -> None:
        """Send each request when one of so many clients has the answer to its previous one."""

        taken = 0

        async def client() -> None:
            while taken < len(self._asks):
                await asyncio.wait([await one()])

        async def one() -> asyncio.Future[None]:
            nonlocal taken
            taken += 1
            connection = await self.connect()
            connection.due = time.perf_counter()
            self.send(connection)
            return connection.closed

        self.begin()
        await asyncio.gather(*(client() for _ in range(min(clients, len(self._asks)))))

    def progress(self) -> Progress:
        """How far the load is."""
        tally, seconds = self._tally, time.perf_counter() - self.start if self.start else 0.0
        first = median(tally.first) if tally.first else None
        return Progress(seconds, len(self.sent), tally.answered, tally.events, first)


async def offer(
    target: Target,
    asks: Sequence[Ask],
    clients: int = 0,
    patience_s: float = 600.0,
    tell: Callable[[Progress], object] | None = None,
) -> Load:
    """Send each request at its time; or, with `clients`, when one of them is free. After the last one is sent, answers that are not
    complete within `patience_s` are given up."""
    sender = _Sender(target, asks)
    telling = asyncio.create_task(_told(sender, tell)) if tell is not None else None
    await (sender.by_clients(clients) if clients else sender.at_their_times())
    await asyncio.wait([connection.closed for connection in sender.sent], timeout=patience_s)
    for connection in sender.sent:
        connection.fail(f"no complete answer within {patience_s:.0f} s")
    used = time.process_time() - sender.used
    if telling is not None:
        telling.cancel()
    start = sender.start
    end = max((connection.pieces[-1][0] for connection in sender.sent if connection.pieces), default=time.perf_counter())
    outcomes = tuple(
        read(connection.pieces, Ask(connection.due - start, ask.path, "", ask.group), start, connection.error)
        for ask, connection in zip(asks, sender.sent, strict=True)
    )
    return Load(outcomes, end - start, used / (end - start))


async def _told(sender: _Sender, tell: Callable[[Progress], object]) -> None:
    while True:
        await asyncio.sleep(TELL_EVERY_S)
        tell(sender.progress())


def main() -> None:
    """Read the plan and write what came of it."""
    plan: dict[str, Any] = json.load(sys.stdin)
    asks = [Ask(**ask) for ask in plan["asks"]]

    def tell(progress: Progress) -> None:
        print(json.dumps({"progress": asdict(progress)}), flush=True)

    load = asyncio.run(
        offer(Target(**plan["target"]), asks, plan["clients"], plan["patience_s"], tell if plan["progress"] else None)
    )
    print(json.dumps({"load": asdict(load)}))


if __name__ == "__main__":
    main()
