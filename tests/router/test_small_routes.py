"""Health, info, models and tokenize."""

from __future__ import annotations

from dataclasses import replace

from tests.router.conftest import Serve
from tests.router.scripted import EVERYTHING
from tests.router.serving import Served


def test_health(serve: Serve) -> None:
    """Health is an empty 200, or 503 with the error object."""
    served, generator = serve()
    for path in ("/", "/health", "/ping"):
        answer = served.client.get(path)
        assert (answer.status_code, answer.content) == (200, b"")
    generator.is_healthy = False
    answer = served.client.get("/health")
    assert (answer.status_code, answer.text) == (503, '{"error":"unhealthy","error_type":"healthcheck"}')


def test_info(serve: Serve) -> None:
    """Info has TGI's keys in TGI's order, with the limits that hold, and one of ours."""
    served, _ = serve(max_input_tokens=10, max_concurrent_requests=7, revision="abc")
    info = served.client.get("/info").json()
    assert list(info) == [
        "model_id", "model_sha", "model_pipeline_tag", "max_concurrent_requests", "max_best_of", "max_stop_sequences",
        "max_input_tokens", "max_total_tokens", "validation_workers",
        "max_client_batch_size", "router", "version", "sha", "docker_label", "prefix_caching", "kernels",
    ]  # fmt: skip
    assert (info["model_id"], info["max_input_tokens"], info["max_total_tokens"]) == ("demo", 10, 64)
    assert (info["max_concurrent_requests"], info["router"]) == (7, "text-generation-router")


def test_models(hello: Served) -> None:
    """The list of models is the one that is served."""
    assert hello.client.get("/v1/models").json() == {
        "object": "list",
        "data": [{"id": "demo", "object": "model", "created": 0, "owned_by": "demo"}],
    }


def test_one_model(serve: Serve) -> None:
    """One model is told by its name, which may have slashes; adapters are models, too; another name is 404 in OpenAI's form."""
    served, _ = serve(
        changes={"name": "org/demo"}, scripted={"capabilities": replace(EVERYTHING, adapters=("me/poet",))}, strict_tgi=False
    )
    listed = served.client.get("/v1/models").json()["data"]
    assert [each["id"] for each in listed] == ["org/demo", "me/poet"]
    for each in listed:
        for name in (each["id"], each["id"].replace("/", "%2F")):
            assert served.client.get(f"/v1/models/{name}").json() == each
    for name in ("gpt-4", "org", ""):
        answer = served.client.get(f"/v1/models/{name}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_tokenize_counts_bytes(hello: Served) -> None:
    """Tokens come with the text and the bytes of the input that they cover."""
    text = "Grüße, 世界!"
    tokens = hello.client.post("/tokenize", json={"inputs": text}).json()
    assert all(list(token) == ["id", "text", "start", "stop"] for token in tokens)
    covering = [token for token in tokens if token["stop"]]
    assert all(text.encode()[token["start"] : token["stop"]].decode() == token["text"] for token in covering)
    assert covering[-1]["stop"] == len(text.encode())


def test_tokenize_long_input(hello: Served) -> None:
    """A long input is tokenized in a worker, with the same result; truncate does not matter here."""
    long = hello.client.post("/tokenize", json={"inputs": "ab " * 5000, "parameters": {"truncate": 1}}).json()
    assert long[-1]["stop"] >= 14_999
