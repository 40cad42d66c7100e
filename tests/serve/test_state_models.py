"""A state-space model behind HTTP: its rows run as a batch."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import DynamicCache

from tests.engine.tiny_models import save_tiny
from tests.serve.process import served
from tgi_core.model_files import DEMO
from tgi_core.model_sizes import named_vocab_size

ROWS = 32


def body(number: int) -> dict[str, Any]:
    """A request: every other one is sampled with a seed."""
    sampling = {"do_sample": True, "temperature": 1.2, "seed": number} if number % 2 else {}
    prompt = " ".join(["Once", "upon", "a", "time", "there", "was"][: 1 + number % 6]) + f" {number}"
    return {"inputs": prompt, "parameters": {"max_new_tokens": 6, "details": True, **sampling}}


def ids(answer: httpx.Response) -> list[int]:
    """The token ids of an answer."""
    assert answer.status_code == 200, answer.text
    return [token["id"] for token in answer.json()["details"]["tokens"]]


async def together(url: str) -> list[list[int]]:
    """All requests at a time."""
    limits = httpx.Limits(max_connections=ROWS)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        return list(map(ids, await asyncio.gather(*(client.post("/generate", json=body(n)) for n in range(ROWS)))))


@pytest.mark.skipif(not hasattr(DynamicCache, "update_conv_state"), reason="this version of transformers has another cache")
def test_mamba_answers_many_at_a_time(tmp_path: Path) -> None:
    """32 concurrent requests get what each gets alone, though there are states for 8 rows only and prompts come in chunks."""
    save_tiny("mamba", tmp_path, vocab_size=named_vocab_size(DEMO), num_hidden_layers=2)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(DEMO / name, tmp_path)
    flags = ("--dtype", "float32", "--max-batch-size", "8", "--max-batch-prefill-tokens", "8", "--max-total-tokens", "64")
    with served("--model-id", str(tmp_path), "--backend", "cpu", *flags) as server:
        answers = asyncio.run(together(server.url))
        with httpx.Client(base_url=server.url, timeout=60) as client:
            assert [ids(client.post("/generate", json=body(n))) for n in range(0, ROWS, 3)] == answers[::3]
            kernels = {kernel["part"]: kernel["name"] for kernel in client.get("/info").json()["kernels"]}
        assert kernels["states"] == "2 layers, rows batched"
    assert all(len(made) == 6 for made in answers if 1 not in made)
