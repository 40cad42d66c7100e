"""The same requests through the server: the overhead of HTTP, tokenization and two processes."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from bench.gpu_parts.driving import Lengths
from bench.gpu_parts.engines import HIGH, open_driver, workload
from bench.gpu_parts.models import make
from bench.gpu_parts.place import Figures, Place

STREAMS = (32, 256)
_NEEDED = ("fastapi", "httptools", "uvicorn")
"""Packages without which no server runs."""
_READY = re.compile(r"ready after [\d.]+ s: http://([\w.]+):(\d+)")


def through_http(place: Place, name: str = "qwen3-0.6b") -> Figures:
    """Tokens per second by number of concurrent streams, compared to the same requests without a server."""
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        return {"not run": f"not installed: {', '.join(missing)}"}
    counts = (2, 4) if place.small else STREAMS
    driver = open_driver(place, name)
    driver.run([Lengths(8, 4)])
    offline = {count: _rate(workload(place, count), driver.run(workload(place, count))) for count in counts}
    driver.close()
    del driver
    if place.backend != "cpu":
        torch.get_device_module(torch.device(place.backend)).empty_cache()
    model = make(name, place.folder, place.small, torch.device("cpu"))
    found: Figures = {}
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(_command(place, model), stdout=log, stderr=log, env=os.environ | {"HF_HUB_OFFLINE": "1"})
        try:
            host, port = _wait_ready(server, log.name if isinstance(log.name, str) else f"/proc/self/fd/{log.fileno()}", place)
            asyncio.run(_ask(host, port, [Lengths(8, 4)]))
            for count in counts:
                wanted = workload(place, count)
                rate = _rate(wanted, asyncio.run(_ask(host, port, wanted)))
                found[f"{count} streams, tokens/s made"] = rate
                found[f"{count} streams, tokens/s made offline"] = offline[count]
                found[f"{count} streams, loss against offline"] = 1 - rate / offline[count]
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
    return found


def _rate(wanted: list[Lengths], taken: float) -> float:
    return sum(each.new for each in wanted) / taken


def _command(place: Place, model: Path) -> list[str]:
    high = 64 if place.small else HIGH
    limits = ["--max-input-tokens", str(high), "--max-total-tokens", str(2 * high), "--max-concurrent-requests", "512"]
    rows = ["--max-batch-size", "8" if place.small else "256", "--max-batch-prefill-tokens", "256" if place.small else "8192"]
    command = [sys.executable, "-m", "tgi_core", "serve", str(model), "--backend", place.backend, "--dtype", "bfloat16"]
    return [*command, "--hostname", "127.0.0.1", "--port", "0", "--drain-delay", "0", *limits, *rows]


def _wait_ready(server: subprocess.Popen[bytes], log: str, place: Place) -> tuple[str, int]:
    while place.left > 0:
        text = Path(log).read_text(errors="replace")
        if found := _READY.search(text):
            return found.group(1), int(found.group(2))
        if server.poll() is not None:
            raise RuntimeError(f"the server ended: {text[-400:]}")
        time.sleep(0.2)
    raise TimeoutError("the server was not ready in time")


async def _ask(host: str, port: int, wanted: list[Lengths]) -> float:
    """Seconds until all streams have ended. Raises RuntimeError if a stream lacks tokens."""
    started = time.perf_counter()
    counts = await asyncio.gather(*(_stream(host, port, each, index) for index, each in enumerate(wanted)))
    taken = time.perf_counter() - started
    for each, count in zip(wanted, counts, strict=True):
        if count != each.new:
            raise RuntimeError(f"a stream of {each.new} tokens had {count}")
    return taken


async def _stream(host: str, port: int, lengths: Lengths, index: int) -> int:
    """Count the events of a request's stream."""
    text = " ".join(f"t{(31 * index + 7 * i) % 500 + 3}" for i in range(lengths.prompt))
    body = json.dumps({"inputs": text, "parameters": {"max_new_tokens": lengths.new}}).encode()
    reader, writer = await asyncio.open_connection(host, port)
    head = f"POST /generate_stream HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    seen, rest = 0, b""
    while part := await reader.read(65536):
        rest += part
        seen += rest.count(b'"token":')
        rest = rest[-7:]
    writer.close()
    return seen
