"""SageMaker's, Vertex's and KServe's routes, and /chat_tokenize."""

from __future__ import annotations

from typing import Any

import pytest

from tests.router.conftest import Serve
from tests.router.scripted import says
from tests.router.serving import Served
from tests.router.test_openai import chunks
from tgi_core.errors import StartupError
from tgi_core.scheduler.types import GenerationFailed, Overloaded

MESSAGES = [{"role": "user", "content": "Hi"}]


def post(served: Served, path: str, body: Any) -> Any:
    """A call."""
    return served.client.post(path, json=body)


def test_invocations(hello: Served) -> None:
    """Each body is answered as its own route answers it, streamed or not."""
    assert post(hello, "/invocations", {"inputs": "Hi", "parameters": {"return_full_text": False}}).json() == [
        {"generated_text": "Hello world"}
    ]
    assert post(hello, "/invocations", {"messages": MESSAGES}).json()["object"] == "chat.completion"
    assert post(hello, "/invocations", {"prompt": "Hi"}).json()["object"] == "text_completion"
    native = post(hello, "/invocations", {"inputs": "Hi", "stream": True})
    assert native.headers["content-type"] == "text/event-stream" and "[DONE]" not in native.text
    for body in ({"messages": MESSAGES, "stream": True}, {"prompt": "Hi", "stream": True}):
        assert len(chunks(post(hello, "/invocations", body).text)) == 3


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "data did not match any variant"),
        ([], "data did not match any variant"),
        ({"inputs": 5}, "Failed to deserialize"),
        ({"prompt": []}, "Failed to deserialize"),
    ],
)
def test_invocations_refusals(hello: Served, body: Any, text: str) -> None:
    """What is no body of any kind is told in plain text."""
    answer = post(hello, "/invocations", body)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "text/plain; charset=utf-8")
    assert answer.text.startswith(text)


def test_vertex(serve: Serve) -> None:
    """One text per instance in their order; native instances take the common parameters unless they bring their own."""
    texts = iter("abc")
    served, generator = serve(lambda request: says(next(texts)))
    instances = [{"inputs": "Hi"}, {"messages": MESSAGES}, {"inputs": "Hi", "parameters": {"max_new_tokens": 3}}]
    answer = post(served, "/vertex", {"instances": instances, "parameters": {"max_new_tokens": 5}})
    assert answer.status_code == 200
    assert sorted(answer.json()["predictions"]) == ["a", "b", "c"]
    taken = {generator.submitted.get_nowait().stopping.max_new_tokens for _ in range(3)}
    assert {3, 5} < taken


@pytest.mark.parametrize(
    ("body", "status", "error_type"),
    [
        ({"instances": []}, 422, "Input validation error"),
        ({"instances": [{"inputs": "x"}] * 129}, 422, "batch size exceeded"),
        ({"instances": [{"inputs": "Hi"}, {"inputs": ""}]}, 422, "validation"),
        ({"instances": [{"messages": MESSAGES, "tools": [], "tool_choice": "f"}]}, 422, "tool_error"),
    ],
)
def test_vertex_refusals(hello: Served, body: Any, status: int, error_type: str) -> None:
    """One bad instance is told as what it is."""
    answer = post(hello, "/vertex", body)
    assert (answer.status_code, answer.json()["error_type"]) == (status, error_type)


def test_vertex_failures(serve: Serve) -> None:
    """The first failure ends the others."""
    for error, status in ((Overloaded("full"), 429), (GenerationFailed("gone"), 424)):
        served, _ = serve(lambda request, error=error: [error])
        assert post(served, "/vertex", {"instances": [{"inputs": "Hi"}] * 3}).status_code == status


def test_vertex_paths(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vertex says in the environment where it calls; health needs no key there, predictions do."""
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/predict")
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/healthz")
    served, _ = serve(api_key="k")
    assert served.client.get("/healthz").status_code == 200
    assert post(served, "/predict", {"instances": [{"inputs": "Hi"}]}).status_code == 401
    served.client.headers["authorization"] = "Bearer k"
    assert post(served, "/predict", {"instances": [{"inputs": "Hi"}]}).json() == {"predictions": ["Hello world"]}


@pytest.mark.parametrize("path", ["predict", "/{anything:path}"])
def test_odd_vertex_paths_end_the_start(serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """What is no plain path is told at start, not guessed."""
    monkeypatch.setenv("AIP_HEALTH_ROUTE", path)
    from tgi_router.cloud import _path

    with pytest.raises(StartupError, match="AIP_HEALTH_ROUTE"):
        _path({"AIP_HEALTH_ROUTE": path}, "AIP_HEALTH_ROUTE")


def test_kserve_says_what_it_is(serve: Serve) -> None:
    """Health, server and model, whatever model the path names; not healthy is 503."""
    served, generator = serve()
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/m/ready", "/v2/models/m/versions/2/ready"):
        assert served.client.get(path).json() == {"live": True}
    assert served.client.get("/v2").json()["extensions"] == ["health", "models", "metrics"]
    assert served.client.get("/v2/models/m/versions/2").json() == {"name": "m", "version": "2", "extensions": ["infer", "ready"]}
    generator.is_healthy = False
    assert served.client.get("/v2/health/ready").status_code == 503


def infer(served: Served, *inputs: Any, outputs: int | None = None) -> Any:
    """A call for inference."""
    given = [{"name": f"in{place}", "shape": [1], "datatype": "BYTES", "data": data} for place, data in enumerate(inputs)]
    wanted = [{"name": f"out{place}"} for place in range(len(inputs) if outputs is None else outputs)]
    return post(served, "/v2/models/m/versions/1/infer", {"id": "7", "inputs": given, "outputs": wanted})


def test_kserve_infers(hello: Served) -> None:
    """Bytes are answered with bytes, text with text."""
    told = list(b"Hello world")
    assert infer(hello, list(b"Hi"), ["Hi"]).json() == {
        "id": "7",
        "outputs": [
            {"name": "out0", "shape": [1, len(told)], "datatype": "BYTES", "data": told},
            {"name": "out1", "shape": [1, 1], "datatype": "BYTES", "data": ["Hello world"]},
        ],
    }


def test_kserve_refusals(hello: Served) -> None:
    """Bytes that are no text, more inputs than outputs, and too many of both are told."""
    assert infer(hello, [255]).json()["error_type"] == "utf8"
    answer = infer(hello, [72], outputs=2)
    assert answer.json() == {"error": "Inputs and outputs length mismatch", "error_type": "length mismatch"}
    assert infer(hello, *[[72]] * 5).json()["error_type"] == "batch size exceeded"
    assert infer(hello, [256]).status_code == 422


def test_chat_tokenize(hello: Served) -> None:
    """A conversation is shown as the model would read it, with its tokens; it counts as a request."""
    before = hello.client.get("/metrics").text
    answer = post(hello, "/chat_tokenize", {"messages": MESSAGES}).json()
    assert "<|user|>Hi" in answer["templated_text"]
    last = answer["tokenize_response"][-1]
    assert last["stop"] == len(answer["templated_text"].encode())
    assert before != hello.client.get("/metrics").text
    refused = post(hello, "/chat_tokenize", {"messages": [{"role": "robot", "content": "x"}]})
    assert (refused.status_code, refused.json()["error_type"]) == (422, "template_error")
