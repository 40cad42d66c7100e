"""This project's server alone: overhead per token, gaps while requests arrive, startup time, memory."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from bench.front.runs import Run, RunSelection, runs
from bench.serving.server import Server, tgi_command
from bench.shapes import SHAPES
from tgi_core.benchmark.generator import Ask, Outcome
from tgi_core.benchmark.load import LoadError, first_tokens, gaps, loopback, offer, percentile, tgi_count, tokens
from tgi_core.benchmark.prompts import prompt

PATH = "/generate_stream"
STREAMS = (64, 256)
STEP_MS = 20.0
"""Step time of a device that does not saturate the server."""
PROMPT = 128
STEADY, STEADY_TOKENS = 8, 192
ARRIVING_S, ARRIVING_TOKENS = 6.0, 16
SETTLED_S = 3.0
"""Seconds after which the background streams have started."""
CACHE_TOKENS = 32 * 256
ALLOWANCE = 350 * 2**20
"""Memory that a shard may use besides weights and cache: Python, torch, step buffers."""


def null(rounds: int) -> dict[str, Any]:
    """Measure serving overhead with a backend that computes nothing. CPU time covers all of the server's processes, so a rate per
    core is what one otherwise idle core would sustain. A device that takes no time saturates the server, which makes latencies
    meaningless; they are measured with steps of `STEP_MS`."""
    rows: list[dict[str, Any]] = []
    for turn in range(rounds):
        for step_ms in (0.0, STEP_MS):
            selection = RunSelection(forms=("child",), routes=("native",), streams=STREAMS, step_ms=step_ms)
            rows += [{"round": turn, "step_ms": step_ms, **_front(run)} for run in runs(selection)]
    return {"rows": rows, **_about("null", "none")}


def _front(run: Run) -> dict[str, Any]:
    made = run.measured
    return {
        "streams": run.streams,
        "rate": made.tokens / made.seconds,
        "rate_per_core": made.tokens / sum(made.cpu),
        "cpu_us_per_token": {name: 1e6 * used / made.tokens for name, used in zip(("router", "shard"), made.cpu, strict=True)},
        "first_p50_s": made.first[0],
        "first_p99_s": made.first[1],
        "client_share": made.client_cpu / made.seconds,
        "spin_ns": made.spin_ns,
    }


def arrivals(model: Path, rounds: int) -> dict[str, Any]:
    """Measure the gaps of eight streams while new requests arrive, whose prompts must be computed in between. Each request is sent
    when the previous one should have been answered, according to a preceding measurement, since no machine could sustain a higher
    rate. In each round, the streams also run undisturbed as a baseline for the machine's own variation."""
    with _server(model, "cpu") as server:
        server.wait_ready(120)
        _beside(server.port, "warm", [0.0])
        _, [alone] = _beside(server.port, "alone", [SETTLED_S])
        every_s = alone.events[-1]
        times = [every_s * (row + 1) for row in range(max(4, int(ARRIVING_S / every_s)))]
        rows = []
        for turn in range(rounds):
            calm, _ = _beside(server.port, f"calm {turn}", [])
            steady, coming = _beside(server.port, f"busy {turn}", times)
            row = {"round": turn, "every_s": every_s, "first_p50_s": median(first_tokens(coming))}
            rows.append(row | _gaps(steady) | {f"calm_{name}": value for name, value in _gaps(calm).items()})
    return {"rows": rows, **_about("cpu", "bfloat16")}


def _beside(port: int, name: str, times: Sequence[float]) -> tuple[list[Outcome], list[Outcome]]:
    """Outcomes of the background streams and of requests sent at the given times. Raises LoadError."""
    steady = [ask(f"steady {name} {row}", PROMPT, STEADY_TOKENS, group="steady") for row in range(STEADY)]
    coming = [ask(f"new {name} {row}", PROMPT, ARRIVING_TOKENS, at=at, group="new") for row, at in enumerate(times)]
    outcomes = offer(loopback(port), [*steady, *coming]).outcomes
    if bad := [outcome for outcome in outcomes if outcome.status != 200]:
        raise LoadError(f"status {bad[0].status}: {bad[0].error}")
    return [item for item in outcomes if item.group == "steady"], [item for item in outcomes if item.group == "new"]


def _gaps(steady: Sequence[Outcome]) -> dict[str, float]:
    between = gaps(steady)
    middle, late = median(between), percentile(between, 99)
    return {"gap_p50_s": middle, "gap_p99_s": late, "ratio": late / middle}


def start_and_memory(model: Path, rounds: int) -> dict[str, Any]:
    """Measure the time from process start to first token, with a warm page cache, then the shard's memory after 32 clients."""
    rows: list[dict[str, Any]] = []
    shape = SHAPES[model.name.removeprefix("random-")]
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    cache = CACHE_TOKENS * shape.cache_bytes
    for turn in range(-1, rounds):  # the first run fills the page cache and builds kernels
        with _server(model, "cpu", "--kv-cache-tokens", str(CACHE_TOKENS)) as server:
            healthy = server.wait_ready(300)
            asked = time.perf_counter() - server.started
            [first] = first_tokens(offer(loopback(server.port), [ask(f"first {turn}", PROMPT, 1)]).outcomes)
            tokens(offer(loopback(server.port), [ask(f"more {turn} {row}", PROMPT, 64) for row in range(32)]), tgi_count, 64)
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


def ask(seed: str, length: int, new: int, at: float = 0.0, group: str = "") -> Ask:
    """A request for `new` tokens behind a prompt of `length`."""
    parameters = {"max_new_tokens": new, "details": True}
    return Ask(at, PATH, json.dumps({"inputs": prompt(seed, length)[1], "parameters": parameters}), group)


def _about(backend: str, precision: str) -> dict[str, Any]:
    return {"engines": {"ours": {"version": version("tgi-core"), "precision": precision, "flags": {"backend": backend}}}}
