"""Load generator over raw sockets in a separate process, cheaper to run than the server under test.

    python -m bench.front.streams URL ROUTE STREAMS TOKENS SECONDS PID,PID

Each connection sends its next request as soon as its answer is complete. After one second of warm-up, the tokens that arrive within
SECONDS are counted, together with the CPU time of the processes. The result is one line of JSON.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from dataclasses import asdict, dataclass, field
from statistics import quantiles
from urllib.parse import urlsplit

import psutil

_WARM_S = 1.5
_END = b"0\r\n\r\n"


@dataclass(slots=True)
class Measured:
    """Result of one measurement window. CPU time by process and waits are in seconds."""

    seconds: float = 0.0
    tokens: int = 0
    answers: int = 0
    spin_ns: float = 0.0
    """CPU time of one round of an empty loop, just before and after: shows the effect of other load on the machine."""
    client_cpu: float = 0.0
    cpu: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    """Median and 99th percentile of the time to first event."""
    gaps: list[float] = field(default_factory=list)
    """Median and 99th percentile of the time between reads of a stream that returned events."""


class _Stream:
    """A connection and the state of its answer."""

    def __init__(self, address: tuple[str, int], request: bytes) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setblocking(False)
        self._request = request
        self.asked = self.last = 0.0
        self.tail = b""

    def ask(self) -> None:
        """Send the next request."""
        self.asked, self.last, self.tail = time.perf_counter(), 0.0, b""
        self.socket.sendall(self._request)


class Load:
    """The streams of one run."""

    def __init__(self, address: tuple[str, int], request: bytes, streams: int, extra: int) -> None:
        self._extra = extra
        """Number of events per answer that are not tokens."""
        self._selector = selectors.DefaultSelector()
        self._streams = [_Stream(address, request) for _ in range(streams)]
        for stream in self._streams:
            self._selector.register(stream.socket, selectors.EVENT_READ, stream)
        self.tokens = self.answers = 0
        self.first: list[float] = []
        self.gaps: list[float] = []

    def start(self, spread_s: float) -> None:
        """Send requests on all connections, staggered so that answers end at different times."""
        for stream in self._streams:
            stream.ask()
            self.run(spread_s / len(self._streams))

    def run(self, seconds: float) -> None:
        """Read events for `seconds`."""
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0:
            for key, _ in self._selector.select(left):
                self._read(key.data)

    def forget(self) -> None:
        """Reset the counters."""
        self.tokens = self.answers = 0
        self.first, self.gaps = [], []

    def _read(self, stream: _Stream) -> None:
        data = stream.tail + stream.socket.recv(1 << 18)
        if data == stream.tail:
            raise ConnectionError(f"closed after {data[-200:]!r}")
        events = data.count(b"data:")
        stream.tail = data[data.rfind(b"data:") + 5 :][-5:]
        if events:
            now = time.perf_counter()
            self.tokens += events
            if stream.last:
                self.gaps.append(now - stream.last)
            else:
                self.first.append(now - stream.asked)
            stream.last = now
        if data.endswith(_END):
            self.tokens -= self._extra
            self.answers += 1
            stream.ask()


def request(host: str, route: str, tokens: int) -> tuple[bytes, int]:
    """Build a request for `tokens` tokens. Returns it with the number of events of its answer that are not tokens."""
    if route == "chat":
        path, extra = "/v1/chat/completions", 1
        body: dict[str, object] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": tokens, "stream": True}
    else:
        path, extra = "/generate_stream", 0
        body = {"inputs": "Hello", "parameters": {"max_new_tokens": tokens}}
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data, extra


def _spin_ns(rounds: int = 400_000) -> float:
    begun, count = time.process_time(), 0
    for value in range(rounds):
        count += value * value & 7
    return 1e9 * (time.process_time() - begun) / rounds


def _middle_and_late(waits: list[float]) -> list[float]:
    found = quantiles(waits, n=100) if len(waits) > 1 else [0.0] * 99
    return [found[49], found[98]]


def _busy(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(url: str, route: str, streams: int, tokens: int, seconds: float, pids: list[int]) -> Measured:
    """Run one load."""
    parts = urlsplit(url)
    sent, ending = request("x", route, tokens)
    load = Load((parts.hostname or "", parts.port or 0), sent, streams, ending)
    processes = [psutil.Process(pid) for pid in pids]
    load.start(_WARM_S)
    load.run(_WARM_S)
    load.forget()
    spun = _spin_ns()
    load.run(0.1)
    load.forget()
    begun, before, own = time.perf_counter(), [_busy(each) for each in processes], time.process_time()
    load.run(seconds)
    cpu = [_busy(each) - was for each, was in zip(processes, before, strict=True)]
    client = time.process_time() - own
    return Measured(
        seconds=time.perf_counter() - begun,
        tokens=load.tokens,
        answers=load.answers,
        client_cpu=client,
        spin_ns=(spun + _spin_ns()) / 2,
        cpu=cpu,
        first=_middle_and_late(load.first),
        gaps=_middle_and_late(load.gaps),
    )


def main() -> None:
    """Measure and print."""
    url, route, streams, tokens, seconds, pids = sys.argv[1:]
    found = measure(url, route, int(streams), int(tokens), float(seconds), [int(pid) for pid in pids.split(",")])
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
