"""`--speculate` changes no byte of any answer, only the number of steps."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from tests.serve.process import ServerProcess, served

PROMPTS = (
    "The capital of France is",
    "a b c a b c a b c a b",
    '{"name": "a", "age": 3}, {"name": "b", "age": 4}, {"na',
    "Once upon a time, once upon a time",
    "Q",
)
REQUESTS = 32
AT_ONCE = 8
TOGETHER: tuple[dict[str, Any], ...] = (
    {},
    {"do_sample": True, "temperature": 0.7, "top_p": 0.95, "seed": 1},
    {"repetition_penalty": 1.1, "frequency_penalty": 0.3},
    {"do_sample": True, "temperature": 0.5, "typical_p": 0.9, "seed": 2},
    {"grammar": {"type": "regex", "value": "([a-d]{2,4} ){3,9}end"}},
    {"stop": ["e ", "zz"]},
    {"top_n_tokens": 3},
    {"do_sample": True, "temperature": 0.6, "top_k": 30, "seed": 3, "repetition_penalty": 1.05},
)
"""Parameters that meet in the same steps."""


def body(index: int) -> dict[str, Any]:
    """Request number `index`, with the logprobs of its tokens."""
    parameters = {"max_new_tokens": 10 + 13 * index % 80, "details": True, **TOGETHER[index % len(TOGETHER)]}
    return {"inputs": f"{PROMPTS[index % len(PROMPTS)]} {index % 3}", "parameters": parameters}


async def answer(client: httpx.AsyncClient, index: int) -> str:
    """The body of an answer, or of its stream."""
    path = "/generate_stream" if index % 3 == 0 else "/generate"
    response = await client.post(path, json=body(index))
    assert response.status_code == 200, response.text
    return response.text


async def answers(url: str) -> tuple[list[str], str]:
    """All answers, and the metrics afterwards."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(index: int) -> str:
        async with turns:
            return await answer(client, index)

    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        return list(await asyncio.gather(*map(one, range(REQUESTS)))), (await client.get("/metrics")).text


def accepted(metrics: str) -> float:
    """Drafts that were accepted."""
    return sum(map(float, re.findall(r"^tgi_spec_decode_accepted_tokens\{.*\} (\S+)$", metrics, re.MULTILINE)))


def run(server: ServerProcess) -> tuple[list[str], float]:
    """All answers, and how many drafts were accepted on the way."""
    bodies, metrics = asyncio.run(answers(server.url))
    return bodies, accepted(metrics)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bodies_are_equal_to_the_byte(dtype: str) -> None:
    """Greedy and seeded, with filters, penalties, grammars, stop strings, logprobs and top tokens, together, streamed or not."""
    with served("--backend", "cpu", "--dtype", dtype) as server:
        wanted, none = run(server)
    with served("--backend", "cpu", "--dtype", dtype, "--speculate", "5") as server:
        found, some = run(server)
    assert found == wanted
    assert none == 0 and some > 0
