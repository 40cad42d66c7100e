"""Traces over OTLP, at a collector that really listens."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.router.serving import Served, read_until
from tests.serve.process import served as serving_process
from tests.telemetry.collector import Collector, attributes, collecting
from tests.telemetry.server import instance, scrape, value
from tgi_core.errors import StartupError
from tgi_core.telemetry.traces import open_traces

DURATION = re.compile(r"\d+(\.\d+)?(s|ms|µs|ns)")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
"""A client's span; its flags say that it is not sampled."""
CANARY = "canary"

Traced = Callable[..., Collector]


@pytest.fixture
def traced() -> Iterator[Traced]:
    """Runs `ask` against a server with traces, and returns all that has reached the collector once the server has ended."""

    def run(ask: Callable[[Served], object], **options: Any) -> Collector:
        with ExitStack() as stack:
            collector = stack.enter_context(collecting())
            traces = open_traces(collector.endpoint, "my-service")
            assert traces is not None
            stack.callback(traces.close)
            ask(stack.enter_context(instance(traces=traces, **options)))
            stack.pop_all().close()  # ends the server, sends what waits, then ends the collector
        return collector

    yield run


def generate(served: Served, path: str = "/generate", headers: dict[str, str] | None = None, **parameters: Any) -> Any:
    """A call of a native route."""
    body = {"inputs": f"{CANARY} in the mine", "parameters": {"max_new_tokens": 4, "stop": [f"{CANARY}!"], **parameters}}
    return served.client.post(path, json=body, headers=headers or {})


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_tree(traced: Traced, path: str) -> None:
    """A request is one span under its handler's name, and below it, one after the other without a gap: validate, queue, prefill and
    decode. The service has the name that was set."""
    collector = traced(lambda served: generate(served, path))
    [root] = collector.named(path[1:])
    assert root.kind == Span.SPAN_KIND_SERVER
    assert root.parent_span_id == b""
    below = collector.children(root)
    assert [span.name for span in below] == ["validate", "queue", "prefill", "decode"]
    for before, after in pairwise(below):
        assert before.end_time_unix_nano == after.start_time_unix_nano
    assert root.start_time_unix_nano <= below[0].start_time_unix_nano
    assert below[-1].end_time_unix_nano <= root.end_time_unix_nano
    assert {resource["service.name"] for resource in collector.resources} == {"my-service"}
    assert attributes(below[3]) == {"generated_tokens": 4}


def test_attributes(traced: Traced) -> None:
    """The handler's span has TGI's fields: parameters without any text of the client's, durations, and the seed."""
    answers: list[Any] = []
    collector = traced(lambda served: answers.append(generate(served, do_sample=True, seed=7, headers={"x-request-id": "a.b-c"})))
    [root] = collector.named("generate")
    found = attributes(root)
    parameters = json.loads(found["parameters"])
    assert parameters.items() >= {"max_new_tokens": 4, "do_sample": True, "seed": 7, "stop": 1}.items()
    times = ("total_time", "validation_time", "queue_time", "inference_time", "time_per_token")
    assert all(DURATION.fullmatch(found[name]) for name in times)
    assert found["seed"] == 7
    assert found["request_id"] == answers[0].headers["x-request-id"] == "a.b-c"
    assert found["http.response.status_code"] == 200
    assert (found["input_length"], found["generated_tokens"]) == (int(answers[0].headers["x-prompt-tokens"]), 4)


def test_no_text(traced: Traced) -> None:
    """Neither a prompt nor an answer, a stop string, a model's or a user's name is in what is sent, also for calls that fail."""
    answers: list[str] = []

    def ask(served: Served) -> None:
        answers.append(generate(served).json()["generated_text"])
        generate(served, temperature=-1)
        chat = {"model": CANARY, "user": CANARY, "messages": [{"role": CANARY, "content": CANARY}], "max_tokens": 2}
        served.client.post("/v1/chat/completions", json=chat)
        served.client.post(f"/{CANARY}", json={CANARY: CANARY})

    collector = traced(ask)
    assert len(collector.named("generate")) == 2
    assert collector.named("chat_completions")
    assert CANARY.encode() not in collector.received
    assert answers[0].encode() not in collector.received


def test_traceparent(traced: Traced) -> None:
    """A client's `traceparent` is the parent of the request's span, whether sampled or not; the answer's names that span."""
    answers: list[Any] = []

    def ask(served: Served) -> None:
        answers.append(generate(served, headers={"traceparent": PARENT}))
        answers.append(generate(served, headers={"traceparent": "00-no-parent-01"}))

    collector = traced(ask)
    adopted, orphan = collector.named("generate")
    assert (adopted.trace_id.hex(), adopted.parent_span_id.hex()) == tuple(PARENT.split("-")[1:3])
    assert orphan.parent_span_id == b""
    assert orphan.trace_id != adopted.trace_id
    for span, answer in zip((adopted, orphan), answers, strict=True):
        names, _, flags = answer.headers["traceparent"].rpartition("-")
        assert names == f"00-{span.trace_id.hex()}-{span.span_id.hex()}"
        assert int(flags, 16) & 1  # sampled


def test_failures(traced: Traced) -> None:
    """A refused request has a span with an error and what it failed as, and of the phases only the one it failed in."""
    collector = traced(lambda served: generate(served, temperature=-1))
    [root] = collector.named("generate")
    assert root.status.code == Status.STATUS_CODE_ERROR
    assert attributes(root).items() >= {"error.type": "validation", "http.response.status_code": 422}.items()
    assert [span.name for span in collector.children(root)] == ["validate"]


def test_leaving(traced: Traced) -> None:
    """The trace of a client that left tells how far it had come."""

    def ask(served: Served) -> None:
        with served.send("/generate_stream", '{"inputs":"a","parameters":{"max_new_tokens":900}}') as connection:
            read_until(connection, b"data: ")
        while not value(scrape(served), "tgi_request_cancelled"):
            pass

    collector = traced(ask)
    [root] = collector.named("generate_stream")
    assert attributes(root)["error.type"] == "dropped"
    assert [span.name for span in collector.children(root)][:3] == ["validate", "queue", "prefill"]


def test_several_generations(traced: Traced) -> None:
    """A call with two prompts has the phases of each."""
    body = {"prompt": ["a", "b"], "max_tokens": 3, "temperature": 0}
    collector = traced(lambda served: served.client.post("/v1/completions", json=body))
    [root] = collector.named("completions")
    names = sorted(span.name for span in collector.children(root))
    assert names == sorted(["validate", "queue", "prefill", "decode"] * 2)


def test_flags() -> None:
    """`tgi serve` sends what it has before it ends, under the name of its flag, by default TGI's."""
    for flags, name in (((), "text-generation-inference.router"), (("--otlp-service-name", "chat"), "chat")):
        with collecting() as collector:
            with serving_process("--backend", "reference", "--otlp-endpoint", collector.endpoint, *flags) as server:
                httpx.post(f"{server.url}/generate", json={"inputs": "a", "parameters": {"max_new_tokens": 2}}, timeout=30)
                assert server.stop() == 0
            assert len(collector.named("generate")) == 1
            assert {resource["service.name"] for resource in collector.resources} == {name}


def test_collector_that_is_not_there() -> None:
    """Requests are answered, and the server ends, when no collector listens."""
    traces = open_traces("http://127.0.0.1:1", "tgi")
    assert traces is not None
    with instance(traces=traces) as served:
        assert generate(served).status_code == 200
    traces.close()


def test_off() -> None:
    """Without an endpoint the server imports nothing of OpenTelemetry. FastAPI, loaded later, brings its API and is told to be silent."""
    code = (
        "import sys; import tgi_core.cli.serving, tgi_router; from tgi_core.telemetry.traces import open_traces;"
        "assert open_traces(None, 'x') is None; print([name for name in sys.modules if 'opentelemetry' in name])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the server does not start, and says what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(StartupError, match=r"--otlp-endpoint http://x: .*pip install 'tgi-core\[otlp\]'"):
        open_traces("http://x", "tgi")
