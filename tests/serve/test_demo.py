"""The bundled model on the CPU, over real sockets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.serve.process import ServerProcess, served

PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "What is 7 plus 5?",
    "Q",
    "Write a JSON object for a person. Then tell me about the weather, the sea, and everything that you know of foxes.",
]


def body(index: int) -> dict[str, Any]:
    """Request number `index`: every second one sampled with a seed, lengths and prompts mixed."""
    parameters: dict[str, Any] = {"max_new_tokens": 20 + index % 13}
    if index % 2:
        parameters |= {"do_sample": True, "temperature": 1.1, "top_p": 0.95, "seed": index}
    if index % 4 == 3:
        parameters |= {"repetition_penalty": 1.2, "top_k": 40}
    return {"inputs": PROMPTS[index % len(PROMPTS)] * (1 + index % 3), "parameters": parameters}


async def stream(client: httpx.AsyncClient, index: int) -> tuple[list[int], str]:
    """Token ids and text of one streamed answer."""
    ids: list[int] = []
    async with client.stream("POST", "/generate_stream", json=body(index)) as response:
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                event = json.loads(line[5:])
                ids.append(event["token"]["id"])
                text = event["generated_text"]
    return ids, text


async def test_32_streams_are_what_they_are_alone(demo_server: ServerProcess) -> None:
    """In float32, greedy or seeded, each of 32 concurrent answers equals the answer to the same request by itself."""
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=demo_server.url, timeout=120, limits=limits) as client:
        together = await asyncio.gather(*(stream(client, index) for index in range(32)))
        alone = [await stream(client, index) for index in range(32)]
    assert together == alone


def ask(url: str, question: str) -> str:
    """The greedy answer to a chat question."""
    messages = [{"role": "user", "content": question}]
    answer = httpx.post(f"{url}/v1/chat/completions", json={"messages": messages, "temperature": 0, "max_tokens": 60}, timeout=60)
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is the capital of France?", "Paris"),
        ("What is the capital of Japan?", "Tokyo"),
        ("What is 2 plus 3?", "5"),
        ("Who are you?", "demo model"),
    ],
)
def test_it_knows_what_it_was_taught(demo_server: ServerProcess, question: str, answer: str) -> None:
    """Greedy answers over chat are right and readable."""
    assert answer in ask(demo_server.url, question)


def test_the_memory_plan_is_printed() -> None:
    """At start the plan names weights and cache, and the settings that shape them count."""
    with served("--backend", "cpu", "--kv-cache-tokens", "4096", "--dtype", "bfloat16") as server:
        plan = "".join(server.lines)
        assert "memory: weights (bfloat16):" in plan and "256 blocks of 16 tokens = 4,096 tokens" in plan
        assert httpx.get(f"{server.url}/info").json()["max_total_tokens"] == 2048
        assert "Paris" in ask(server.url, "What is the capital of France?")
        assert server.stop() == 0
    assert "Traceback" not in "".join(server.lines)


def test_blocks_come_back(demo_server: ServerProcess) -> None:
    """When nobody is served, no request is in the batch or in the queue."""
    httpx.post(f"{demo_server.url}/generate", json=body(0), timeout=60)
    metrics = httpx.get(f"{demo_server.url}/metrics").text.splitlines()
    assert "tgi_queue_size 0" in metrics and "tgi_batch_current_size 0" in metrics
