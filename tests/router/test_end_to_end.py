"""The router on the real scheduler and model server, with the reference backend."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tgi_router import ServedModel, create_app

from tests.router.serving import Served, read_until, serving
from tests.router.shard import Shard
from tgi_core.config import Settings


@pytest.fixture(scope="module")
def shard(model: ServedModel) -> Shard:
    """One shard for all tests here; each leaves it idle."""
    return Shard(model.tokenizer)


@pytest.fixture(scope="module")
def served(model: ServedModel, shard: Shard) -> Iterator[Served]:
    """The whole instance on a socket."""
    settings = Settings(enable_prefill_logprobs=True, max_concurrent_requests=32)
    with serving(lambda generator: create_app(settings, model, generator), shard.opening) as running:
        yield running


def generate(served: Served, inputs: str = "The quick brown fox", **parameters: Any) -> Any:
    """A native answer."""
    answer = served.client.post("/generate", json={"inputs": inputs, "parameters": {"max_new_tokens": 12, **parameters}})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_greedy_is_repeatable_and_streams_alike(served: Served) -> None:
    """Greedy answers repeat; the stream's tokens add up to the whole answer, token by token the same."""
    whole = generate(served, details=True)
    assert generate(served, details=True) == whole
    parameters = {"max_new_tokens": 12, "details": True}
    text = served.client.post("/generate_stream", json={"inputs": "The quick brown fox", "parameters": parameters}).text
    events = [json.loads(event[6:]) for event in text.split("\n\n")[:-1]]
    assert [event["token"] for event in events] == whole["details"]["tokens"]
    assert events[-1]["generated_text"] == whole["generated_text"]
    assert events[-1]["details"]["finish_reason"] == whole["details"]["finish_reason"]


def test_seeds(served: Served) -> None:
    """The same seed draws the same answer, also when the seed was drawn by the server and taken from the details."""
    first = generate(served, do_sample=True, temperature=2.0, details=True)
    again = generate(served, do_sample=True, temperature=2.0, seed=first["details"]["seed"])
    assert again["generated_text"] == first["generated_text"]
    others = {generate(served, do_sample=True, temperature=2.0, seed=seed)["generated_text"] for seed in range(4)}
    assert len(others) > 1


def test_prompt_and_top_tokens(served: Served) -> None:
    """The prompt's tokens and the likeliest tokens arrive with their logprobs."""
    details = generate(served, decoder_input_details=True, top_n_tokens=3)["details"]
    ids = [token["id"] for token in served.client.post("/tokenize", json={"inputs": "The quick brown fox"}).json()]
    assert [token["id"] for token in details["prefill"]] == ids
    assert details["prefill"][0]["logprob"] is None
    assert all(len(top) == 3 for top in details["top_tokens"])
    assert [top[0]["id"] for top in details["top_tokens"]] == [token["id"] for token in details["tokens"]]


def test_truncate(served: Served) -> None:
    """A truncated prompt gives what its last tokens alone give."""
    details = generate(served, decoder_input_details=True, truncate=3)["details"]
    ids = [token["id"] for token in served.client.post("/tokenize", json={"inputs": "The quick brown fox"}).json()]
    assert [token["id"] for token in details["prefill"]] == ids[-3:]


def test_stop_string(served: Served) -> None:
    """A stop string ends the answer, stays in it natively, and is the reason."""
    whole = generate(served, details=True)
    texts = [token["text"] for token in whole["details"]["tokens"]]
    stop = next(text for text in texts[2:] if text.strip())
    stopped = generate(served, details=True, stop=[stop])
    assert stopped["details"]["finish_reason"] == "stop_sequence"
    assert stopped["generated_text"].endswith(stop)


def test_best_of(served: Served) -> None:
    """Of two samples the likelier one is answered."""
    answer = generate(served, best_of=2, do_sample=True, temperature=3.0, details=True)["details"]
    [other] = answer["best_of_sequences"]

    def mean(tokens: list[Any]) -> float:
        return float(sum(token["logprob"] for token in tokens) / len(tokens))

    assert mean(answer["tokens"]) >= mean(other["tokens"])


def test_chat_and_completions(served: Served) -> None:
    """Both of OpenAI's routes answer; temperature 0 gives the native greedy answer."""
    body = {"prompt": "The quick brown fox", "max_tokens": 12, "temperature": 0}
    completion = served.client.post("/v1/completions", json=body).json()
    assert completion["choices"][0]["text"] == generate(served)["generated_text"]
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 12, "temperature": 0}
    whole = served.client.post("/v1/chat/completions", json=chat).json()
    streamed = served.client.post("/v1/chat/completions", json={**chat, "stream": True}).text.split("\n\n")[:-2]
    pieces = [json.loads(event[6:])["choices"][0] for event in streamed]
    assert "".join(piece["delta"]["content"] for piece in pieces) == whole["choices"][0]["message"]["content"]
    assert pieces[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]


def test_cached_tokens_are_told(served: Served) -> None:
    """What was found in the cache is in the usage, in /info and in the metrics; a salt of one's own finds nothing."""
    body = {"prompt": "Once there was a prompt of many words, " * 4, "max_tokens": 2, "temperature": 0}

    def cached(**headers: str) -> int:
        answer = served.client.post("/v1/completions", json=body, headers=headers).json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached() == 0
    before = served.client.get("/info").json()["prefix_caching"]
    hit = cached()
    assert hit > 0 and hit % 16 == 0
    assert cached(**{"x-cache-salt": "mine"}) == 0
    after = served.client.get("/info").json()["prefix_caching"]
    assert before["enabled"] and after["hit_tokens"] - before["hit_tokens"] == hit


def test_batch_mates_change_nothing(served: Served) -> None:
    """Sixteen requests at once each get the answer that they get alone."""
    prompts = [f"Story number {number}" for number in range(16)]
    alone = [generate(served, prompt) for prompt in prompts]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda prompt: generate(served, prompt), prompts)) == alone


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", '{"inputs":"Hi","parameters":{"max_new_tokens":1500}}'),
        ("/generate_stream", '{"inputs":"Hi","parameters":{"max_new_tokens":1500}}'),
        ("/v1/completions", '{"prompt":["a","b"],"max_tokens":1500,"stream":true}'),
    ],
)
def test_leaving_frees_the_device(served: Served, shard: Shard, path: str, body: str) -> None:
    """Once a client has left, its requests are out of the scheduler and all their blocks are free."""
    assert shard.loop is not None
    before, free = len(shard.steps), shard.loop.snapshot().blocks_total
    with served.send(path, body) as connection:
        if "stream" in path:
            read_until(connection, b"data: ")
        while len(shard.steps) == before:  # unlike a look at the load this cannot come too late
            served.client.get("/health")
    while shard.loop.snapshot().running or shard.loop.snapshot().queued:
        served.client.get("/health")
    assert shard.loop.snapshot().blocks_free == free
    assert len(shard.steps) - before < 1400
