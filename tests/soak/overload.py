"""More requests than the server can answer: `python -m tests.soak.overload --seconds 20`.

The device takes a fixed time for each step, so that the capacity is known. First as many clients ask as there is room for, each after
its last answer, which gives the peak; then ten times the peak comes, whether or not it is answered, each request on a connection of
its own. Meanwhile probes look on.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

import psutil
import uvicorn
from tgi_router import Connection, ConnectionPolicy, ServedModel, create_app

from tgi_core.backend import WarmupPlan
from tgi_core.backend.reference import ReferenceSession
from tgi_core.backend.session import Session
from tgi_core.client.local import LocalShard
from tgi_core.client.types import ShardInfo
from tgi_core.config import Settings
from tgi_core.model_files import DEMO
from tgi_core.scheduler import SchedulerLoop
from tgi_core.server.model_server import ModelServer

ROWS, STEP_S, TOKENS = 16, 0.02, 20
PERMITS = 2 * ROWS
"""Half of them wait: for the time of one answer."""
FACTOR = 10
BODY = f'{{"inputs":"once","parameters":{{"max_new_tokens":{TOKENS}}}}}'


@dataclass
class Answer:
    """A status, the seconds that it took, and the headers."""

    status: int
    seconds: float
    headers: bytes


@dataclass
class Report:
    """What came of a run."""

    peak: float = 0.0
    """Answers per second, with as many clients as there is room for."""
    goodput: float = 0.0
    """Answers per second under overload."""
    answers: list[Answer] = field(default_factory=list)
    probes: dict[str, list[float]] = field(default_factory=dict)
    lost: int = 0
    """Requests without an answer."""
    cpu_share: float = 0.0
    """Cores that the server used under overload."""
    rss: tuple[int, int] = (0, 0)
    """Bytes of the server before and after."""
    recovered_s: float = 0.0
    """How long the first answer took when the load was gone."""

    def rejected(self) -> list[Answer]:
        """Those that were told to come back."""
        return [answer for answer in self.answers if answer.status == 429]

    def __str__(self) -> str:
        rejects = [answer.seconds for answer in self.rejected()]
        probes = ", ".join(f"{path} p99 {1e3 * percentile(each, 99):.0f} ms" for path, each in self.probes.items())
        return (
            f"peak {self.peak:.1f}/s, goodput {self.goodput:.1f}/s ({100 * self.goodput / self.peak:.0f} %), "
            f"{len(rejects)} rejects p50 {1e3 * percentile(rejects, 50):.1f} ms p99 {1e3 * percentile(rejects, 99):.1f} ms, "
            f"{self.lost} lost; {probes}; {self.cpu_share:.2f} cores; RSS {self.rss[0] / 2**20:.0f} -> {self.rss[1] / 2**20:.0f} MiB; "
            f"afterwards one answer in {self.recovered_s:.2f} s"
        )


def percentile(values: list[float], share: int) -> float:
    """The value below which `share` percent lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) * share // 100, len(ordered) - 1)] if ordered else float("nan")


async def ask(port: int, head: str, body: str = "") -> Answer:
    """One request on a connection of its own."""
    start = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        length = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n" if body else ""
        writer.write(f"{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{length}\r\n{body}".encode())
        data = await reader.read()
    finally:
        writer.close()
    return Answer(int(data.split(b" ")[1]), time.monotonic() - start, data.partition(b"\r\n\r\n")[0].lower())


async def peak(port: int, seconds: float) -> float:
    """Answers per second to clients that wait for each other."""
    until = time.monotonic() + seconds

    async def client() -> int:
        done = 0
        while time.monotonic() < until:
            done += (await ask(port, "POST /generate", BODY)).status == 200
        return done

    start = time.monotonic()
    counts = await asyncio.gather(*(client() for _ in range(PERMITS)))
    return sum(counts) / (time.monotonic() - start)


async def probe(port: int, path: str, seen: list[float]) -> None:
    """Look now and then, until cancelled."""
    while True:
        answer = await ask(port, f"GET {path}")
        assert answer.status == 200, path
        seen.append(answer.seconds)
        await asyncio.sleep(0.05)


async def overload(port: int, process: psutil.Process, seconds: float) -> Report:
    """The whole course."""
    await ask(port, "POST /generate", BODY)
    report = Report(peak=await peak(port, max(seconds / 4, 2.0)), probes={"/health": [], "/metrics": []})
    before, used = process.memory_info().rss, process.cpu_times()
    looking = [asyncio.create_task(probe(port, path, seen)) for path, seen in report.probes.items()]
    start, sent, asked = time.monotonic(), 0, []
    while (now := time.monotonic()) < start + seconds:
        due = int((now - start) * FACTOR * report.peak)
        asked += [asyncio.create_task(ask(port, "POST /generate", BODY)) for _ in range(due - sent)]
        sent = due
        await asyncio.sleep(0.005)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    took = time.monotonic() - start
    for task in looking:
        task.cancel()
    for task in looking:
        with suppress(asyncio.CancelledError):
            await task
    now_used = process.cpu_times()
    report.cpu_share = (now_used.user + now_used.system - used.user - used.system) / took
    report.answers = [answer for answer in answers if isinstance(answer, Answer)]
    report.lost = len(answers) - len(report.answers)
    report.goodput = sum(answer.status == 200 for answer in report.answers) / took
    report.recovered_s = (await ask(port, "POST /generate", BODY)).seconds
    report.rss = before, process.memory_info().rss
    return report


@contextmanager
def server() -> Iterator[tuple[int, psutil.Process]]:
    """The server in a process of its own: its port, and the process."""
    command = [sys.executable, "-m", "tests.soak.overload", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        try:
            assert child.stdout is not None
            yield int(child.stdout.readline()), psutil.Process(child.pid)
        finally:
            child.terminate()


async def serve() -> None:
    """The server: a device that takes a fixed time for a step."""
    settings = Settings(max_concurrent_requests=PERMITS)
    model = ServedModel.load(DEMO, "demo", settings)
    async with _shard(model) as loop:
        app = create_app(settings, model, loop)
        policy = ConnectionPolicy.of(settings)

        def connection(*arguments: object, **options: object) -> Connection:
            return Connection(*arguments, **options, policy=policy)  # type: ignore[arg-type]

        config = uvicorn.Config(app, port=0, http=connection, ws="none", log_config=None, access_log=False)  # type: ignore[arg-type]
        serving = uvicorn.Server(config)
        running = asyncio.create_task(serving.serve())
        while not serving.started:
            await asyncio.sleep(0.01)
        print(serving.servers[0].sockets[0].getsockname()[1], flush=True)
        await running


@asynccontextmanager
async def _shard(model: ServedModel) -> AsyncIterator[SchedulerLoop]:
    reference = ReferenceSession(model.tokenizer.vocab_size, 1024, on_step=lambda work: time.sleep(STEP_S))
    session = Session(reference, "reference")
    info = ShardInfo("demo", "reference", "none", "float32", (1, 0), session.capabilities())
    shard = LocalShard(ModelServer(session, model.tokenizer, info))
    capacity = await shard.warmup(WarmupPlan(max_rows=ROWS, max_row_tokens=1024), lambda *progress: None)
    loop = SchedulerLoop(shard, info, capacity)
    running = asyncio.create_task(loop.run())
    yield loop
    running.cancel()


def main() -> None:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve())
        return
    with server() as (port, process):
        print(asyncio.run(overload(port, process, arguments.seconds)))


if __name__ == "__main__":
    main()
