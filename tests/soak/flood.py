"""A load of requests from a process of its own, at the lowest priority, so that it takes no time from the server that it tries.

    python -m tests.soak.flood PORT SECONDS [--rate PER_SECOND | --clients N] [--source ADDRESS] [--priority high] [--tokens N]

With a rate requests come whether or not those before them are answered, each on a connection of its own. With clients each asks again
as soon as it is answered, on its connection as long as that lasts. The last line printed is a JSON object; the line before, `begun`,
tells that it has begun.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import time
from dataclasses import asdict, dataclass, field

MOST_OPEN = 4000

_BIND_ADDRESS_NO_PORT = 24
"""Leave the port to `connect`: `bind` would search for long once tens of thousands have been used (ip(7); not in Python 3.11)."""


@dataclass
class Counts:
    """What came of it."""

    sent: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    """Connections that ended without an answer."""
    unanswered: int = 0
    """Requests that were still open at the end."""
    seconds: float = 0.0
    cpu_s: float = 0.0
    """What the load itself took."""


class _Exchange:
    """A request on a socket, and what has come of its answer."""

    def __init__(self, own: socket.socket) -> None:
        self.socket = own
        self.data = b""

    @property
    def last(self) -> bool:
        """Whether the answer says that the connection ends with it."""
        return b"\r\nconnection: close\r\n" in self.data.lower()

    def status(self) -> str | None:
        """Once the answer is whole: all of them say their length."""
        head, found, body = self.data.partition(b"\r\n\r\n")
        if not found:
            return None
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        return self.data[9:12].decode() if len(body) >= length else None


class Flood:
    """Sends until time is up."""

    def __init__(self, port: int, source: str, request: bytes, again: bool) -> None:
        self.counts = Counts()
        self._address, self._source = ("127.0.0.1", port), source
        self._request, self._again = request, again
        self._selector = selectors.DefaultSelector()

    def open(self) -> None:
        """One more connection, with a request."""
        own = socket.socket()
        own.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
        own.bind((self._source, 0))
        own.setblocking(False)
        own.connect_ex(self._address)
        self._selector.register(own, selectors.EVENT_WRITE, _Exchange(own))
        self.counts.sent += 1

    def run(self, seconds: float, rate: float, clients: int) -> Counts:
        """The whole course."""
        for _ in range(clients):
            self.open()
        start, used, opened = time.monotonic(), time.process_time(), 0
        while (now := time.monotonic() - start) < seconds:
            due = int(now * rate) - opened
            room = MOST_OPEN - len(self._selector.get_map())
            for _ in range(min(due, room)):
                self.open()
            opened += max(due, 0)
            for key, _ in self._selector.select(0.002):
                self._go_on(key.data, key.events)
        self.counts.seconds, self.counts.cpu_s = time.monotonic() - start, time.process_time() - used
        self.counts.unanswered = len(self._selector.get_map())
        return self.counts

    def _go_on(self, exchange: _Exchange, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                exchange.socket.send(self._request)
                self._selector.modify(exchange.socket, selectors.EVENT_READ, exchange)
                return
            data = exchange.socket.recv(1 << 16)
        except OSError:
            data = b""
        exchange.data += data
        status = exchange.status()
        if status is not None:
            self.counts.statuses[status] = self.counts.statuses.get(status, 0) + 1
        if status is None and data:
            return
        self.counts.lost += status is None
        if self._again and status is not None and not exchange.last:
            exchange.data = b""
            self.counts.sent += 1
            exchange.socket.send(self._request)
            return
        self._selector.unregister(exchange.socket)
        exchange.socket.close()
        if self._again:
            self.open()


def request(tokens: int, priority: str = "", path: str = "/generate", close: bool = False) -> bytes:
    """A request with its head."""
    body = f'{{"inputs":"once","parameters":{{"max_new_tokens":{tokens}}}}}'
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    wish = f"x-request-priority: {priority}\r\n" if priority else ""
    return f"{head}{wish}{'connection: close' + chr(13) + chr(10) if close else ''}\r\n{body}".encode()


def main() -> None:
    """Send, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--clients", type=int, default=0)
    parser.add_argument("--source", default="127.0.0.1")
    parser.add_argument("--priority", default="")
    parser.add_argument("--tokens", type=int, default=20)
    given = parser.parse_args()
    os.nice(19)
    flood = Flood(given.port, given.source, request(given.tokens, given.priority, close=not given.clients), bool(given.clients))
    print("begun", flush=True)
    print(json.dumps(asdict(flood.run(given.seconds, given.rate, given.clients))), flush=True)


if __name__ == "__main__":
    main()
