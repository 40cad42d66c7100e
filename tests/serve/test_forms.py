"""A shard in a child process and one in the server's own: the same server, seen from outside."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx

from tests.serve.process import ServerProcess, served

REQUESTS: list[dict[str, Any]] = [
    {"inputs": "Hello", "parameters": {"max_new_tokens": 40, "details": True, "decoder_input_details": True, "top_n_tokens": 2}},
    {"inputs": "Hello", "parameters": {"max_new_tokens": 20, "seed": 7, "do_sample": True, "details": True}},
    {"inputs": "A date:", "parameters": {"max_new_tokens": 40, "grammar": {"type": "regex", "value": "[0-9]{4}-[0-9]{2}"}}},
]
ARGUMENTS = ("--enable-prefill-logprobs", "--kv-cache-tokens", "4096", "--memory-fraction", "0.5")


def seen(server: ServerProcess) -> tuple[list[Any], dict[str, float], dict[str, Any], list[str]]:
    """Answers, counts of batches and verbs, what the server says of itself, and what it printed at start."""
    printed = [re.sub(r"^\S+ INFO|after [\d.]+ s: \S+|[\d,.]+ MiB", "", line) for line in server.lines]
    answers = [httpx.post(f"{server.url}/generate", json=body, timeout=60).json() for body in REQUESTS]
    samples = re.findall(r"^(tgi_(?:batch|backend)_\w+(?:{[^}]*})?) ([\d.]+)$", idle_metrics(server), re.M)
    counts = {name: float(value) for name, value in samples if not re.search("duration_(sum|bucket)", name)}
    return answers, counts, httpx.get(f"{server.url}/info").json(), printed


def idle_metrics(server: ServerProcess) -> str:
    """Metrics once the rows that ended have been dropped."""
    while True:
        text = httpx.get(f"{server.url}/metrics").text
        if f'tgi_backend_verb_duration_count{{verb="filter"}} {len(REQUESTS)}' in text:
            return text


def test_both_forms_are_the_same_server() -> None:
    """Tokens, logprobs, grammars, every count of batches and of the backend's verbs, /info and the lines at start."""
    with served("--backend", "reference", "--in-process", *ARGUMENTS) as server:
        within = seen(server)
        assert server.stop() == 0
    with served("--backend", "reference", *ARGUMENTS) as server:
        apart = seen(server)
        assert server.stop() == 0
    assert json.dumps(within[0]) == json.dumps(apart[0]) and "error" not in within[0][2]
    assert within[1] == apart[1] and within[1]['tgi_backend_verb_duration_count{verb="rows"}'] > 40
    assert within[2:] == apart[2:]
