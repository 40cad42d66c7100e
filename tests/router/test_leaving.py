"""Clients that leave, permits, failures, and what the metrics say of them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from tgi_router import app, sse
from tgi_router.tokenizing import Tokenizing

from tests.router.conftest import Serve
from tests.router.scripted import END, HOLD, Load, says
from tests.router.serving import Served, read_until
from tgi_core.backend import RowFault, RowFaultKind
from tgi_core.literals import Span
from tgi_core.scheduler.types import GenerationFailed, GenerationRequest, Overloaded
from tgi_core.wire.types import Generation

BODY = '{"inputs":"Hi","parameters":{"max_new_tokens":9}}'
CHAT = '{"messages":[{"role":"user","content":"Hi"}],"stream":%s}'
ROUTES = [
    ("/generate", BODY),
    ("/generate_stream", BODY),
    ("/", BODY),
    ("/v1/chat/completions", CHAT % "false"),
    ("/v1/chat/completions", CHAT % "true"),
    ("/v1/completions", '{"prompt":["a","b"]}'),
    ("/v1/completions", '{"prompt":["a","b"],"stream":true}'),
]
NAMES = ("count", "success", "duration_count", "generated_tokens_sum", "input_length_count", "time_to_first_token_duration_count")


def counters(served: Served) -> dict[str, float]:
    """The tgi_request_* series by their names without that prefix."""
    lines = (line.removeprefix("tgi_request_") for line in served.client.get("/metrics").text.split("\n") if line[:1] != "#")
    return {name: float(value) for name, _, value in (line.partition(" ") for line in lines if line)}


def failures(served: Served) -> dict[str, float]:
    """The failures that there were, by label."""
    found = {name[13:-2]: value for name, value in counters(served).items() if name.startswith("failure{err=")}
    return {err: value for err, value in found.items() if value}


def held(request: GenerationRequest) -> list[Generation | None]:
    """One token, then nothing."""
    return [says("Hello")[0], HOLD]


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_leaving_cancels(serve: Serve, path: str, body: str) -> None:
    """A client that leaves, streaming or not, cancels what it asked for; permits come back; it counts as dropped."""
    served, generator = serve(held, max_concurrent_requests=2)
    prompts = body.count('"a","b"') + 1
    connection = served.send(path, body)
    submitted = [generator.submitted.get(timeout=5) for _ in range(prompts)]
    connection.close()
    assert {id(generator.cancelled.get(timeout=5)) for _ in range(prompts)} == {id(request) for request in submitted}
    generator.script = lambda request: says("Hello")
    again = served.client.post("/v1/completions", json={"prompt": ["a", "b"]})
    assert again.status_code == 200
    assert failures(served) == {"dropped": prompts}
    assert counters(served)["count"] == counters(served)["success"] + prompts


def test_leaving_inside_a_stream_cancels(serve: Serve) -> None:
    """A client that leaves after the first token cancels the rest."""
    served, generator = serve(held)
    with served.send("/generate_stream", BODY) as connection:
        read_until(connection, b'"text":"Hello"')
    assert generator.cancelled.get(timeout=5) is generator.submitted.get(timeout=5)


class Slow(Tokenizing):
    """Waits for its gate before it tokenizes."""

    entered, gate = threading.Event(), threading.Event()

    async def ids(self, text: str, special: bool, literals: Sequence[Span], keep: int) -> tuple[int, tuple[int, ...]]:
        """The real thing, late."""
        self.entered.set()
        await asyncio.to_thread(self.gate.wait, 10)
        return await super().ids(text, special, literals, keep)


def test_leaving_before_submission_submits_nothing(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that leaves while its long prompt is tokenized never reaches the scheduler; meanwhile others are answered."""
    monkeypatch.setattr(app, "Tokenizing", slow := Slow)
    served, generator = serve(max_concurrent_requests=1)
    with served.send("/generate", json.dumps({"inputs": "x" * 10_000, "parameters": {"truncate": 9}})):
        assert slow.entered.wait(5)
        assert served.client.get("/health").status_code == 200
    while not failures(served):
        served.client.get("/health")
    slow.gate.set()
    assert served.client.post("/generate", json={"inputs": "Hi"}).status_code == 200
    assert failures(served) == {"dropped": 1}
    assert generator.submitted.qsize() == 1


def test_leaving_a_long_stream_that_nobody_reads(serve: Serve) -> None:
    """A client that stops reading and leaves ends a stream that has more to say than the connection takes."""
    served, generator = serve(lambda request: says(*["x" * 20_000] * 1000))
    with served.send("/generate_stream", BODY):
        generator.submitted.get(timeout=5)
    while not failures(served):
        served.client.get("/health")
    assert failures(served) == {"dropped": 1}


def test_permits(serve: Serve) -> None:
    """With all permits taken a request is told at once to come back; a permit is free again when its stream has ended."""
    served, generator = serve(held, max_concurrent_requests=1)
    with served.send("/generate_stream", BODY) as connection:
        read_until(connection, b'"text":"Hello"')
        refused = served.client.post("/generate", json={"inputs": "Hi"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert 500 <= int(refused.headers["retry-after-ms"]) <= 1000
        assert refused.text == '{"error":"Model is overloaded","error_type":"overloaded"}'
        streamed = served.client.post("/generate_stream", json={"inputs": "Hi"})
        assert streamed.text == 'data: {"error":"Model is overloaded","error_type":"overloaded"}\n\n'
        chat = served.client.post("/v1/chat/completions", content=CHAT % "true", headers={"content-type": "application/json"})
        assert (chat.status_code, chat.headers["retry-after"], chat.json()["error"]["code"]) == (429, "1", "overloaded")
    generator.cancelled.get(timeout=5)
    generator.script = lambda request: says("Hello")
    for _ in range(3):
        assert served.client.post("/generate", json={"inputs": "Hi"}).status_code == 200
    assert failures(served) == {"overloaded": 3, "dropped": 1}


def test_each_sample_and_prompt_takes_a_permit(serve: Serve) -> None:
    """best_of and batches need a permit for each text, all or none."""
    served, _ = serve(max_concurrent_requests=1)
    best_of = {"inputs": "Hi", "parameters": {"best_of": 2, "do_sample": True}}
    assert served.client.post("/generate", json=best_of).status_code == 429
    assert served.client.post("/v1/completions", json={"prompt": ["a", "b"]}).status_code == 429
    assert served.client.post("/generate", json={"inputs": "Hi"}).status_code == 200


@pytest.mark.parametrize(
    ("script", "status", "error", "label"),
    [
        ([Overloaded("full")], 429, ("Model is overloaded", "overloaded"), "overloaded"),
        (
            [says("a")[0], GenerationFailed("device lost")],
            424,
            ("Request failed during generation: Server error: device lost", "generation"),
            "generation",
        ),
        (
            [Generation(1, fault=RowFault(RowFaultKind.NAN, "not a number"))],
            424,
            ("Request failed during generation: Server error: not a number", "generation"),
            "generation",
        ),
    ],
    ids=["overloaded", "failed", "fault"],
)
def test_failures_of_the_generator(serve: Serve, script: list[Any], status: int, error: tuple[str, str], label: str) -> None:
    """What the generator cannot do is told as TGI tells it: with a status, or as an event of a stream."""
    served, _ = serve(lambda request: script)
    whole = served.client.post("/generate", json={"inputs": "Hi"})
    told = {"error": error[0], "error_type": error[1]}
    assert (whole.status_code, whole.json()) == (status, told)
    streamed = served.client.post("/generate_stream", json={"inputs": "Hi"})
    assert streamed.status_code == 200
    assert json.loads(streamed.text.split("\n\n")[-2].removeprefix("data: ")) == told
    assert failures(served) == {label: 2}


def test_one_of_several_fails(serve: Serve) -> None:
    """A batch fails with its first failure; nothing of it goes on, and every prompt counts once."""
    scripts = iter([[says("a")[0], HOLD], [GenerationFailed("gone")]])
    served, generator = serve(lambda request: next(scripts), max_concurrent_requests=2)
    answer = served.client.post("/v1/completions", json={"prompt": ["a", "b"]})
    assert (answer.status_code, answer.headers["x-should-retry"], answer.headers["retry-after"]) == (503, "true", "1")
    assert generator.cancelled.get(timeout=5) is generator.submitted.get(timeout=5)
    assert failures(served) == {"generation": 2}


def test_stream_without_an_end(serve: Serve) -> None:
    """Results that end before the answer is complete are told as incomplete."""
    served, _ = serve(lambda request: [says("Hello")[0], END])
    whole = served.client.post("/generate", json={"inputs": "Hi"})
    assert (whole.status_code, whole.text) == (500, '{"error":"Incomplete generation","error_type":"incomplete_generation"}')
    streamed = served.client.post("/generate_stream", json={"inputs": "Hi"}).text.split("\n\n")
    assert streamed[1] == 'data: {"error":"Incomplete generation stream","error_type":"incomplete_generation_stream"}'
    assert failures(served) == {"incomplete": 2}


def test_keep_alive(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream in which nothing happens carries a comment now and then."""
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.01)
    served, _ = serve(held)
    with served.send("/generate_stream", BODY) as connection:
        assert b"\r\n:\n\n\r\n" in read_until(connection, b":\n\n\r\n3\r\n:\n\n\r\n")


def test_metrics_of_successes(serve: Serve) -> None:
    """Each text that is complete counts once, with its tokens; best_of counts as one, a batch by its prompts."""
    served, _ = serve(lambda request: says("a", "b"))
    before = counters(served)
    served.client.post("/generate", json={"inputs": "Hi"})
    served.client.post("/generate", json={"inputs": "Hi", "parameters": {"best_of": 2, "do_sample": True}})
    served.client.post("/v1/completions", json={"prompt": ["a", "b"], "stream": True})
    after = counters(served)
    grown = {name: after[name] - before[name] for name in NAMES}
    assert grown == dict(zip(NAMES, (4, 4, 4, 12, 4, 4), strict=True))
    assert failures(served) == {}


def test_refused_calls_count(serve: Serve) -> None:
    """Whatever is refused counts as asked for and as failed, and keeps no permit."""
    served, _ = serve(changes={"chat_templates": None}, max_concurrent_requests=1)
    for _ in range(3):
        assert served.client.post("/generate", json={"inputs": ""}).status_code == 422
    served.client.post("/v1/chat/completions", content=CHAT % "false", headers={"content-type": "application/json"})
    served.client.post("/v1/completions", json={"prompt": "a", "suffix": "b"})
    assert failures(served) == {"validation": 4, "template": 1}
    assert counters(served)["count"] == 5


def test_metrics_text(serve: Serve) -> None:
    """Names, types and buckets are TGI's: counters without `_total`, no `_created`, gauges from the scheduler's load."""
    served, generator = serve()
    generator.load = Load(queued=3, running=2)
    answer = served.client.get("/metrics")
    lines = answer.text.split("\n")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "# TYPE tgi_request_count counter" in lines
    assert "# TYPE tgi_request_duration histogram" in lines
    assert "tgi_request_count 0" in lines
    assert 'tgi_request_failure{err="overloaded"} 0' in lines
    assert "tgi_queue_size 3" in lines and "tgi_batch_current_size 2" in lines
    assert "_total" not in answer.text and "_created" not in answer.text
    bounds = [line.split('"')[1] for line in lines if line.startswith("tgi_request_duration_bucket")]
    assert len(bounds) == 36 and float(bounds[0]) == pytest.approx(0.00015) and bounds[-1] == "+Inf"
    assert sum(line.startswith("tgi_request_generated_tokens_bucket") for line in lines) == 101
