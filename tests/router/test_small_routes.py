"""Health, info, models, tokenize, and the api key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tgi_router import ServedModel, create_app

from tests.router.conftest import Serve
from tests.router.scripted import ScriptedGenerator, says
from tests.router.serving import Served, already, read_until, serving
from tgi_core.config import Settings

PUBLIC = [("GET", "/"), ("GET", "/health"), ("GET", "/ping"), ("HEAD", "/health")]
GUARDED = [
    ("POST", "/"), ("POST", "/generate"), ("POST", "/generate_stream"), ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"), ("POST", "/tokenize"), ("GET", "/info"),
    ("GET", "/metrics"), ("GET", "/v1/models"), ("GET", "/nope"), ("GET", "/x//health"),
    ("GET", "/health/"), ("DELETE", "/health"),
]  # fmt: skip


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
    """Info has TGI's keys in TGI's order, with the limits that hold."""
    served, _ = serve(max_input_tokens=10, max_concurrent_requests=7, revision="abc")
    info = served.client.get("/info").json()
    assert list(info) == [
        "model_id", "model_sha", "model_pipeline_tag", "max_concurrent_requests", "max_best_of", "max_stop_sequences",
        "max_input_tokens", "max_total_tokens", "validation_workers",
        "max_client_batch_size", "router", "version", "sha", "docker_label",
    ]  # fmt: skip
    assert (info["model_id"], info["max_input_tokens"], info["max_total_tokens"]) == ("demo", 10, 64)
    assert (info["max_concurrent_requests"], info["router"]) == (7, "text-generation-router")


def test_models(hello: Served) -> None:
    """The list of models is the one that is served."""
    assert hello.client.get("/v1/models").json() == {
        "object": "list",
        "data": [{"id": "demo", "object": "model", "created": 0, "owned_by": "demo"}],
    }


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


@pytest.mark.parametrize(("method", "path"), PUBLIC)
def test_probes_need_no_key(serve: Serve, method: str, path: str) -> None:
    """Health may be asked without a key."""
    served, _ = serve(api_key="Sécret")
    assert served.client.request(method, path).status_code == 200


@pytest.fixture(scope="module")
def locked(model: ServedModel) -> Iterator[Served]:
    """A server with a key."""

    generator = ScriptedGenerator(lambda request: says("Hello"))
    with serving(lambda made: create_app(Settings(api_key="Sécret"), model, made), already(generator)) as served:
        yield served


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_everything_else_needs_the_key(locked: Served, method: str, path: str) -> None:
    """Without the exact key every other path, known or not, answers an empty 401."""
    key = "Sécret".encode()
    wrong: list[list[tuple[bytes, bytes]]] = [
        [],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer " + key[:-1])],
        [(b"authorization", b"Bearer " + key.lower())],
        [(b"authorization", b"Bearer " + key + b" x")],
        [(b"authorization", b"Basic " + key)],
        [(b"authorization", b"Bearer " + key), (b"authorization", b"Bearer " + key)],
    ]
    for headers in wrong:
        answer = locked.client.request(method, path, headers=headers)
        assert (answer.status_code, answer.content) == (401, b"")
    right = locked.client.request(method, path, headers=[(b"authorization", b"Bearer " + key)])
    assert right.status_code in (200, 404, 405, 415)


@pytest.mark.parametrize(
    "line", [b"GET /info HTTP/1.1\r\nhost: a/health?x=", b"GET //health HTTP/1.1\r\nhost: a", b"GET /heal%74h/../info HTTP/1.1"]
)
def test_odd_request_lines_open_nothing(locked: Served, line: bytes) -> None:
    """Neither a host nor odd spellings of a path change what is guarded."""
    with locked.connect() as connection:
        connection.sendall(line + b"\r\n\r\n")
        assert b" 401 " in read_until(connection, b"\r\n\r\n")


def test_preflight_needs_no_key(locked: Served) -> None:
    """A browser asks for permission without a key."""
    asks = {
        "origin": "http://a.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type",
    }
    assert locked.client.options("/generate", headers=asks).status_code == 200
