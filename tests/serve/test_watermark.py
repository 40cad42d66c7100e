"""`watermark: true`: the text carries a watermark that its token ids alone prove, and nobody else's text changes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

import tgi_core
from tests.serve.process import environment, served
from tgi_core.backend.watermark import z_score
from tgi_core.model_sizes import named_vocab_size

DEMO = Path(tgi_core.__file__).parent / "demo"
SCRIPT = Path(__file__).parents[2] / "scripts" / "detect_watermark.py"
SAMPLED = {"do_sample": True, "temperature": 3.0, "seed": 1}
"""Hot, because only where several tokens are likely does a bias change the text: the demo model knows its stories by heart."""
PROMPT = "Once upon a time"


async def generated(url: str, *bodies: dict[str, Any]) -> list[list[int]]:
    """Token ids of up to 200 new tokens for each of these parameters, generated together."""
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:

        async def one(parameters: dict[str, Any]) -> list[int]:
            given = {"max_new_tokens": 200, "details": True, **parameters}
            answer = await client.post("/generate", json={"inputs": PROMPT, "parameters": given})
            assert answer.status_code == 200, answer.text
            return [token["id"] for token in answer.json()["details"]["tokens"]]

        return list(await asyncio.gather(*map(one, bodies)))


def score(ids: list[int], gamma: float = 0.5) -> float:
    """The z-score over the demo model's vocabulary."""
    size = named_vocab_size(DEMO)
    assert size is not None
    return z_score(ids, size, gamma)


def marked(ids: list[int], tmp_path: Path) -> str:
    """What the script prints of token ids."""
    (tmp_path / "ids").write_text(json.dumps(ids))
    command = [sys.executable, str(SCRIPT), "--tokenizer", str(DEMO), "--ids", str(tmp_path / "ids")]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment()).stdout


def test_a_watermark_is_found(tmp_path: Path) -> None:
    """In one batch, with and without penalties, also with rows that have none: they generate what they generate alone."""
    penalized = {**SAMPLED, "repetition_penalty": 1.1, "watermark": True}
    with served("--backend", "cpu") as server:
        (alone,) = asyncio.run(generated(server.url, SAMPLED))
        rows = asyncio.run(generated(server.url, SAMPLED, {**SAMPLED, "watermark": True}, {}, {"watermark": True}, penalized))
    plain, sampled, greedy, favoured, other = rows
    assert plain == alone and len(plain) == 200 and abs(score(plain)) < 2
    assert score(sampled) > 4 and score(other) > 4 and greedy != favoured
    assert marked(sampled, tmp_path) == f"z {score(sampled):.2f} of {len(sampled)} tokens\n"


def test_the_operator_sets_the_numbers() -> None:
    """--watermark-gamma and the variable of --watermark-delta."""
    with served("--backend", "cpu", "--watermark-gamma", "0.25", extra={"WATERMARK_DELTA": "30"}) as server:
        (ids,) = asyncio.run(generated(server.url, {**SAMPLED, "watermark": True}))
    assert score(ids, 0.25) > 0.8 * ((len(ids) - 1) * 3) ** 0.5  # of what green tokens only would score
