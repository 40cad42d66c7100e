"""This project's server by itself: its own cost per token, its gaps while requests arrive, its start, its memory."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from bench.random_model import prompt
from bench.serving.load import LoadError, first_tokens, gaps, offer, percentile, tgi_count, tokens
from bench.serving.server import Server, tgi_command
from bench.serving.stream import Ask
from bench.shapes import SHAPES

PATH = "/generate_stream"
STREAMS = (64, 256)
PROMPT = 128
STEADY, STEADY_TOKENS = 8, 192
ARRIVING, ARRIVING_TOKENS, EVERY_S = 24, 16, 0.4
CACHE_TOKENS = 32 * 256
ALLOWANCE = 350 * 2**20
"""What a shard may keep in memory beside weights and cache: Python, torch, buffers of a step."""


def null(model: Path, rounds: int, new: int, streams: Sequence[int] = STREAMS) -> dict[str, Any]:
    """The whole path on a backend that computes nothing. CPU time is the server's, all its processes; so a rate per core is what one
    core would do if nothing else ran on it."""
    rows: list[dict[str, Any]] = []
    with _server(model, "reference", "--max-concurrent-requests", str(2 * max(streams))) as server:
        server.wait_ready(120)
        for turn in range(-1, rounds):  # the first is a warm-up
            for count in streams:
                before = server.cpu_seconds()
                load = offer(server.port, [_ask(f"{turn} {count} {stream}", 16, new) for stream in range(count)])
                used = {name: now - before[name] for name, now in server.cpu_seconds().items()}
                made = tokens(load, tgi_count, new)
                waits = first_tokens(load.outcomes)
                row = {
                    "streams": count,
                    "round": turn,
                    "tokens": made,
                    "rate": made / load.seconds,
                    "rate_per_core": made / sum(used.values()),
                    "cpu_us_per_token": {name: 1e6 * seconds / made for name, seconds in used.items()},
                    "first_p50_s": median(waits),
                    "first_p99_s": percentile(waits, 99),
                    "client_share": load.client_share,
                }
                rows += [row] if turn >= 0 else []
    return {"rows": rows, **_about("reference", "none")}


def arrivals(model: Path, rounds: int) -> dict[str, Any]:
    """Eight streams run on while a new request comes every 0.4 s, whose prompt is to be computed in between."""
    rows: list[dict[str, Any]] = []
    with _server(model, "cpu") as server:
        server.wait_ready(120)
        for turn in range(-1, rounds):
            steady = [_ask(f"steady {turn} {row}", PROMPT, STEADY_TOKENS, group="steady") for row in range(STEADY)]
            coming = [
                _ask(f"new {turn} {row}", PROMPT, ARRIVING_TOKENS, at=EVERY_S * (row + 1), group="new") for row in range(ARRIVING)
            ]
            outcomes = offer(server.port, [*steady, *coming]).outcomes
            if bad := [outcome for outcome in outcomes if outcome.status != 200]:
                raise LoadError(f"status {bad[0].status}: {bad[0].last}")
            between = gaps([outcome for outcome in outcomes if outcome.group == "steady"])
            waits = first_tokens([outcome for outcome in outcomes if outcome.group == "new"])
            middle, late = median(between), percentile(between, 99)
            row = {"round": turn, "gap_p50_s": middle, "gap_p99_s": late, "ratio": late / middle, "first_p50_s": median(waits)}
            rows += [row] if turn >= 0 else []
    return {"rows": rows, **_about("cpu", "bfloat16")}


def start_and_memory(model: Path, rounds: int) -> dict[str, Any]:
    """From the start of the process to the first token, files in the page cache; then what the shard keeps in memory after 32 clients."""
    rows: list[dict[str, Any]] = []
    shape = SHAPES[model.name.removeprefix("random-")]
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    cache = CACHE_TOKENS * shape.cache_bytes
    for turn in range(-1, rounds):  # the first fills the page cache, and builds what is built once
        with _server(model, "cpu", "--kv-cache-tokens", str(CACHE_TOKENS)) as server:
            healthy = server.wait_ready(300)
            asked = time.perf_counter() - server.started
            [first] = first_tokens(offer(server.port, [_ask(f"first {turn}", PROMPT, 1)]).outcomes)
            tokens(offer(server.port, [_ask(f"more {turn} {row}", PROMPT, 64) for row in range(32)]), tgi_count, 64)
            resident = server.resident()
        row = {
            "round": turn,
            "healthy_s": healthy,
            "first_token_s": asked + first,
            "router_bytes": resident[0],
            "shard_bytes": max(resident[1:]),
            "weights_bytes": weights,
            "cache_bytes": cache,
            "bound_bytes": weights + cache + ALLOWANCE,
        }
        rows += [row] if turn >= 0 else []
    return {"rows": rows, **_about("cpu", "bfloat16")}


def _server(model: Path, backend: str, *flags: str) -> Server:
    return Server(tgi_command(model, backend, *flags), Path(tempfile.gettempdir()) / f"tgi-bench-{backend}.log")


def _ask(seed: str, length: int, new: int, at: float = 0.0, group: str = "") -> Ask:
    parameters = {"max_new_tokens": new, "details": True}
    return Ask(at, PATH, json.dumps({"inputs": prompt(seed, length)[1], "parameters": parameters}), group)


def _about(backend: str, precision: str) -> dict[str, Any]:
    return {"engines": {"ours": {"version": version("tgi-core"), "precision": precision, "flags": {"backend": backend}}}}
