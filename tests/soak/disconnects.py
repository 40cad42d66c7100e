"""Clients that leave at any moment and in any way: `python -m tests.soak.disconnects --count 20000`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tgi_router import ServedModel, create_app

from tests.router.serving import Served, serving
from tests.router.shard import Shard
from tgi_core.config import Settings
from tgi_core.model_files import DEMO

CLIENTS = 24
"""At once; more than there are permits, so that some are refused."""

PERMITS = 40

SETTINGS = Settings(max_concurrent_requests=PERMITS, max_client_batch_size=PERMITS, max_best_of=4)

_LONG = "once upon a time " * 100
_LONG_PROMPT = f'{{"inputs":"{_LONG}","parameters":{{"max_new_tokens":200}}}}'
REQUESTS = (
    ("/generate", '{"inputs":"once","parameters":{"max_new_tokens":200}}'),
    ("/generate", _LONG_PROMPT),
    ("/generate", '{"inputs":"once","parameters":{"max_new_tokens":50,"best_of":3,"do_sample":true}}'),
    ("/generate_stream", '{"inputs":"once","parameters":{"max_new_tokens":200}}'),
    ("/generate_stream", _LONG_PROMPT),
    ("/", '{"inputs":"once","stream":true,"parameters":{"max_new_tokens":200}}'),
    ("/v1/completions", '{"prompt":["a","b","c"],"max_tokens":100,"stream":true}'),
    ("/v1/completions", '{"prompt":["a","b","c"],"max_tokens":100}'),
    ("/v1/chat/completions", '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":100,"stream":true,"n":2}'),
    ("/v1/chat/completions", '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":100}'),
    ("/invocations", '{"inputs":"once","parameters":{"max_new_tokens":100}}'),
    ("/vertex", '{"instances":[{"inputs":"a"},{"inputs":"b"}],"parameters":{"max_new_tokens":100}}'),
    ("/v2/models/m/infer", '{"inputs":[{"name":"a","data":[72]}],"outputs":[{"name":"b"}],"parameters":{"max_new_tokens":100}}'),
    ("/tokenize", f'{{"inputs":"{_LONG * 5}"}}'),
    ("/chat_tokenize", f'{{"messages":[{{"role":"user","content":"{_LONG}"}}]}}'),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Held:
    """What a server holds."""

    rows: int
    queued: int
    blocks: int
    tasks: int
    descriptors: int

    def within(self, other: Held) -> bool:
        """Whether it is no more than at another time, in any respect."""
        return all(getattr(self, name) <= getattr(other, name) for name in self.__dataclass_fields__)


class ServerUnderTest:
    """A server of this process, and what it holds."""

    def __init__(self, served: Served, shard: Shard) -> None:
        self.served = served
        self._shard = shard

    def held(self) -> Held:
        """At this moment."""
        assert self._shard.loop is not None
        load, loop = self._shard.loop.snapshot(), self.served.server.loop

        async def count() -> int:
            return len(asyncio.all_tasks())

        tasks = asyncio.run_coroutine_threadsafe(count(), loop).result(10)
        descriptors = len(os.listdir("/proc/self/fd"))
        return Held(load.running, load.queued, load.blocks_total - load.blocks_free, tasks, descriptors)

    def quiet(self) -> Held:
        """What is held when nothing happens: the same at many looks in a row."""
        held, looks = self.held(), 0
        while looks < 50:
            now = self.held()
            held, looks = now, looks + 1 if now == held and not (now.rows or now.queued or now.blocks) else 0
        return held

    def settle(self, before: Held, seconds: float = 60.0) -> float:
        """Wait until no more is held than before; how many seconds that took."""
        start = time.monotonic()
        while not (held := self.held()).within(before):
            assert time.monotonic() - start < seconds, f"left over: {held}, before: {before}"
        return time.monotonic() - start

    def check_permits(self) -> None:
        """All permits can be taken at once."""
        body = {"prompt": ["a"] * PERMITS, "max_tokens": 2}
        assert self.served.client.post("/v1/completions", json=body).status_code == 200


@contextmanager
def open_server() -> Iterator[ServerUnderTest]:
    """The whole instance on a socket, warm: what is made at the first use is there."""
    model = ServedModel.load(DEMO, "demo", SETTINGS)
    shard = Shard(model.tokenizer)
    with serving(lambda generator: create_app(SETTINGS, model, generator), shard.opening, SETTINGS) as served:
        instance = ServerUnderTest(served, shard)
        storm(instance, 60, seed=-1)
        instance.check_permits()
        yield instance


def storm(instance: ServerUnderTest, count: int, seed: int) -> None:
    """So many clients come and leave."""
    address = instance.served.address
    with ThreadPoolExecutor(CLIENTS) as pool:
        for done in [pool.submit(visit, address, random.Random(f"{seed} {number}")) for number in range(count)]:
            done.result()


def visit(address: tuple[str, int], chance: random.Random) -> None:
    """Ask for something and leave."""
    path, body = chance.choice(REQUESTS)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    data = (head + body).encode()
    if chance.random() < 0.1:
        data = data[: chance.randrange(len(data))]
    with socket.create_connection(address, timeout=30) as connection, suppress(ConnectionError):
        connection.sendall(data)
        _stay(connection, chance)
        _leave(connection, chance)


def _stay(connection: socket.socket, chance: random.Random) -> None:
    """For no time, for a moment, or for some events. It is chance that is wanted here."""
    how = chance.randrange(3)
    if how == 1:
        time.sleep(chance.random() * 0.02)
    elif how == 2:
        seen, wanted = b"", chance.randrange(1, 12)
        connection.settimeout(0.05)
        with suppress(TimeoutError):
            while seen.count(b"data: ") < wanted and (piece := connection.recv(4096)):
                seen += piece


def _leave(connection: socket.socket, chance: random.Random) -> None:
    """By FIN, by RST, or by half: the client has no more to say, and the server closes."""
    how = chance.randrange(3)
    if how == 1:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif how == 2:
        connection.settimeout(30)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass


def main() -> None:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    with open_server() as instance:
        before = instance.quiet()
        start = time.monotonic()
        storm(instance, arguments.count, arguments.seed)
        took = time.monotonic() - start
        settled = instance.settle(before)
        instance.check_permits()
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join()
    after = f"{settled:.2f} s after the last one the server held what it held before: {before}"
    print(f"{arguments.count} clients disconnected in {took:.1f} s; {after}")


if __name__ == "__main__":
    main()
