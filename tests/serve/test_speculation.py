"""`--speculate` changes no byte of any answer, only the number of steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from tgi_router import ServedModel, create_app

from tests.engine.eagle3_files import trained_eagle3
from tests.engine.mtp_files import trained_mimo
from tests.engine.speculator_files import base_model, mlp, trained_medusa
from tests.router.serving import serving
from tests.router.shard import Shard
from tests.serve.process import ServerProcess, served
from tests.serve.speculating import FORMS, PROMPTS, SCHEMA, accepted, answers, series
from tgi_core.backend import WarmupPlan
from tgi_core.config import Settings
from tgi_core.model_files import DEMO
from tgi_core.scheduler import SchedulerOptions
from tgi_core.tokenizer import Tokenizer

REQUESTS = range(2 * FORMS)
FLAGS = ("--backend", "cpu", "--dtype", "float32", "--max-batch-size", "8")
FEW = ("--kv-cache-tokens", "512")
"""A cache that eight answers do not fit into: rows are preempted."""
FORCED = {
    "inputs": "As JSON:",
    "parameters": {"max_new_tokens": 200, "details": True, "grammar": {"type": "json", "value": SCHEMA}},
}


@pytest.fixture(scope="module")
def plain() -> list[str]:
    """What a server without drafts answers to `REQUESTS`."""
    with served(*FLAGS) as server:
        wanted = asyncio.run(answers(server.url, REQUESTS))
        assert sum(accepted(httpx.get(f"{server.url}/metrics").text).values()) == 0
        return wanted


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server with every drafter."""
    with served(*FLAGS, *FEW, "--speculate", "5", "--speculator", "suffix") as speculating:
        yield speculating


def test_bodies_are_equal_to_the_byte(server: ServerProcess, plain: list[str]) -> None:
    """Greedy and seeded, with filters, penalties, grammars, tools, predictions, stop strings, logprobs and top tokens, together, streamed
    or not, while other clients leave and rows are preempted."""
    found = asyncio.run(answers(server.url, REQUESTS, leaving=True))
    assert found == plain
    shares = accepted(httpx.get(f"{server.url}/metrics").text)
    assert shares.keys() == {"grammar", "prediction", "model", "ngram", "suffix"} and shares["grammar"] > 0, shares
    assert shares["model"] == 0, shares


def test_keys_of_a_schema_come_in_few_steps() -> None:
    """The tokens that a grammar forces are drafts: a JSON object with long keys takes far fewer steps than it has tokens. No step takes
    time, so that no draft is dear on a busy machine."""
    model = ServedModel.load(DEMO, "demo", Settings())
    texts, steps = [], []
    for draft in (0, 5):
        shard = Shard(model.tokenizer, WarmupPlan(max_row_tokens=512, draft=draft), grammars=True, clock=lambda: 0.0)
        with serving(lambda generator: create_app(Settings(), model, generator), shard.opening) as running:
            response = running.client.post("/generate", json=FORCED)
        texts.append(response.text)
        steps.append(len(shard.steps))
    tokens = response.json()["details"]["generated_tokens"]
    assert texts[0] == texts[1] and steps[0] >= tokens and steps[1] < tokens * 2 / 3, (steps, tokens)


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Medusa heads, one of EAGLE-3 and a layer of the model that know some of the demo model's answers, and an MLPSpeculator that knows
    nothing."""
    model, tokenizer = base_model(DEMO), Tokenizer.load(DEMO)
    texts = []
    for index in range(2 * len(PROMPTS)):
        ids = torch.tensor([tokenizer.encode(f"{PROMPTS[index % len(PROMPTS)]} {index % 2}").ids])
        texts.append(model.generate(ids, do_sample=False, max_new_tokens=80, pad_token_id=0)[0].tolist())
    folder = tmp_path_factory.mktemp("heads")
    mlp(folder / "mlp", DEMO, tied=True, scaled=True)
    medusa = trained_medusa(folder / "medusa", DEMO, texts, 3)
    mtp = trained_mimo(folder / "mtp", DEMO, texts)
    return {"medusa": medusa, "mlp": folder / "mlp", "eagle3": trained_eagle3(folder / "eagle3", DEMO, texts), "mtp": mtp}


@pytest.mark.parametrize("layout", ["medusa", "mlp", "eagle3", "mtp", "draft model"])
def test_bodies_are_equal_with_a_speculator(layout: str, heads: dict[str, Path], plain: list[str]) -> None:
    """Whose repository is served in place of a model, as in TGI, that a flag names, or that the model brings."""
    model = [str(heads[layout])] if layout in ("medusa", "mlp", "mtp") else ["--draft-model", str(heads.get(layout, DEMO))]
    model += ["--speculate", "4"] if layout == "mtp" else []
    with served(*model, *FLAGS, *FEW) as speculating:
        assert asyncio.run(answers(speculating.url, REQUESTS, leaving=True)) == plain
        metrics = httpx.get(f"{speculating.url}/metrics").text
        kernels = httpx.get(f"{speculating.url}/info").json()["kernels"]
    given = {labels: count for labels, count in series(metrics, "tgi_spec_decode_draft_tokens") if 'source="model"' in labels}
    assert sum(given.values()) > 0
    if layout != "mlp":
        assert accepted(metrics)["model"] > sum(given.values()) / (2 if layout == "draft model" else 8)
    assert any(kernel["part"] == "proposals" and kernel["name"].startswith(layout) for kernel in kernels)


def test_bodies_are_equal_in_bfloat16() -> None:
    """So they are on the kernels of another dtype."""
    model = ServedModel.load(DEMO, "demo", Settings())
    found = []
    for draft in (0, 5):
        plan = WarmupPlan(max_rows=8, max_row_tokens=512, draft=draft)
        shard = Shard(model.tokenizer, plan, grammars=True, on_cpu="bfloat16", options=SchedulerOptions(earlier_answers=True))
        with serving(lambda generator: create_app(Settings(), model, generator), shard.opening) as running:
            found.append(asyncio.run(answers(str(running.client.base_url), REQUESTS, leaving=True)))
    assert found[0] == found[1]
