"""The phases of a server's life, as probes and clients see them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tgi_router import Front, ServedModel, create_app

from tests.router.conftest import Serve
from tests.router.scripted import HOLD, ScriptedGenerator, says
from tests.router.serving import Served, already, read_until, serving
from tgi_core.config import Settings
from tgi_core.lifecycle import Lifecycle, Phase

GENERATING = {
    "/": {"inputs": "Hi"},
    "/generate": {"inputs": "Hi"},
    "/generate_stream": {"inputs": "Hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/messages": {"model": "tgi", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"input": "Hi"},
    "/invocations": {"inputs": "Hi"},
    "/vertex": {"instances": [{"inputs": "Hi"}]},
    "/v2/models/m/infer": {"inputs": [], "outputs": []},
}
HEALTH = ("/", "/health", "/ping", "/v2/health/ready")


@contextmanager
def living(model: ServedModel, lifecycle: Lifecycle, script: Any = None, **settings: Any) -> Iterator[Served]:
    """A server with a life."""
    chosen = Settings(**settings)
    generator = ScriptedGenerator(script or (lambda request: says("Hello")))
    with serving(lambda made: create_app(chosen, model, made, lifecycle=lifecycle), already(generator), chosen) as served:
        yield served


def assert_closed(served: Served, error_type: str = "unavailable") -> None:
    """Every route that generates answers 503 in its dialect, and says when to come back."""
    for path, body in GENERATING.items():
        answer = served.client.post(path, json=body)
        assert answer.status_code == 503, (path, answer.text)
        assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("1", "1000")
        told = answer.json()
        if path == "/v1/messages":
            assert answer.headers["x-should-retry"] == "true" and told["error"]["type"] == "overloaded_error"
            continue
        assert told["error_type"] == error_type
        if path.startswith("/v1/"):
            assert answer.headers["x-should-retry"] == "true" and told["error"]["code"] == error_type
        else:
            assert set(told) == {"error", "error_type"}


def test_while_the_model_loads() -> None:
    """The socket answers: alive, not ready, how far it has come; everything else is 503 with a time to come back."""
    lifecycle = Lifecycle()
    front = Front(Settings(), lifecycle)
    with serving(lambda made: front, already(ScriptedGenerator(lambda request: []))) as served:
        assert served.client.get("/livez").status_code == 200
        lifecycle.progress("load weights", 3, 10, "B")
        told = served.client.get("/readyz")
        work = {"what": "load weights", "done": 3, "total": 10, "unit": "B"}
        assert (told.status_code, told.json()) == (503, {"phase": "starting", "progress": work})
        health = served.client.get("/health")
        assert (health.status_code, health.text) == (503, '{"error":"unhealthy","error_type":"healthcheck"}')
        assert [served.client.get(path).status_code for path in ("/info", "/metrics", "/v1/models", "/x")] == [503] * 4
        assert_closed(served)


def test_the_app_takes_over(model: ServedModel) -> None:
    """Once the app is there it answers, on the same socket and connection."""
    lifecycle = Lifecycle()
    front = Front(Settings(), lifecycle)
    with serving(lambda made: front, already(ScriptedGenerator(lambda request: []))) as served:
        assert served.client.get("/info").status_code == 503
        front.pass_to(create_app(Settings(), model, ScriptedGenerator(lambda request: says("Hello")), lifecycle=lifecycle))
        assert served.client.get("/readyz").status_code == 503
        lifecycle.serving()
        assert served.client.get("/readyz").json() == {"phase": "serving"}
        assert served.client.post("/generate", json={"inputs": "Hi"}).status_code == 200


def test_the_key_guards_a_starting_server() -> None:
    """With a key only probes are answered without it, from the first moment."""
    front = Front(Settings(api_key="k"), Lifecycle())
    with serving(lambda made: front, already(ScriptedGenerator(lambda request: []))) as served:
        assert [served.client.get(path).status_code for path in ("/livez", "/readyz", "/health")] == [200, 503, 503]
        assert [served.client.get(path).status_code for path in ("/info", "/metrics", "/x")] == [401] * 3
        assert served.client.post("/generate", json={"inputs": "Hi"}).status_code == 401
        assert served.client.get("/info", headers={"authorization": "Bearer k"}).status_code == 503


def test_restarting(model: ServedModel) -> None:
    """While the shard is away the server is alive and not ready; requests are refused, or wait where there is a queue."""
    lifecycle = Lifecycle(Phase.SERVING)
    with living(model, lifecycle) as served:
        lifecycle.restarting("the shard was lost")
        assert served.client.get("/livez").status_code == 200
        ready = served.client.get("/readyz")
        assert (ready.status_code, ready.json()) == (503, {"phase": "restarting", "reason": "the shard was lost"})
        assert {served.client.get(path).status_code for path in HEALTH} == {503}
        assert {served.client.get(path).status_code for path in ("/info", "/metrics", "/v1/models")} == {200}
        assert_closed(served)
        lifecycle.restarting("the shard was lost", queueing=True)
        assert served.client.post("/generate", json={"inputs": "Hi"}).status_code == 200
        assert served.client.get("/readyz").status_code == 503
        lifecycle.serving()
        assert {served.client.get(path).status_code for path in (*HEALTH, "/readyz")} == {200}


def test_draining_and_failed(model: ServedModel) -> None:
    """A server that drains is alive, not ready, and answers; one that has failed is not alive, for good."""
    lifecycle = Lifecycle(Phase.SERVING)
    with living(model, lifecycle) as served:
        lifecycle.draining()
        lifecycle.serving()
        assert [served.client.get(path).status_code for path in ("/livez", "/readyz", "/health")] == [200, 503, 503]
        assert served.client.post("/generate", json={"inputs": "Hi"}).status_code == 200
        lifecycle.failed("restarted too often")
        lifecycle.serving()
        assert served.client.get("/livez").json() == {"phase": "failed", "reason": "restarted too often"}
        assert [served.client.get(path).status_code for path in ("/livez", "/readyz", "/health")] == [503] * 3
        assert_closed(served)


def test_a_full_server_is_healthy(model: ServedModel) -> None:
    """Neither permits nor the queue turn the probes red, and metrics are there under any load."""
    lifecycle = Lifecycle(Phase.SERVING)
    with ExitStack() as stack:
        script = [says("Hello")[0], HOLD]
        served = stack.enter_context(living(model, lifecycle, lambda request: script, max_concurrent_requests=1))
        connection = stack.enter_context(served.send("/generate_stream", '{"inputs":"Hi"}'))
        read_until(connection, b"Hello")
        assert served.client.post("/generate", json={"inputs": "Hi"}).status_code == 429
        assert {served.client.get(path).status_code for path in (*HEALTH, "/livez", "/readyz", "/metrics")} == {200}


def test_a_shard_that_does_not_answer(serve: Serve) -> None:
    """The shard's own word counts too."""
    served, generator = serve()
    generator.is_healthy = False
    assert [served.client.get(path).status_code for path in ("/livez", "/readyz", "/health")] == [200, 503, 503]


STREAMS = {
    "/generate_stream": ('{"inputs":"Hi"}', b'data: {"error":"The server is shutting down","error_type":"shutting_down"}\n\n'),
    "/v1/completions": ('{"prompt":["a","b"],"stream":true}', b"data: [DONE]\n\n"),
    "/v1/chat/completions": ('{"messages":[{"role":"user","content":"Hi"}],"stream":true}', b"data: [DONE]\n\n"),
}


def test_a_device_that_does_not_compute_numbers(serve: Serve) -> None:
    """No requests should be sent to a shard whose rows are NaN again and again; that is no reason to end the process."""
    served, generator = serve()
    generator.is_sound = False
    assert served.client.get("/readyz").status_code == 503
    assert served.client.get("/livez").status_code == served.client.get("/health").status_code == 200


@pytest.mark.parametrize("strict", [False, True])
def test_the_end(model: ServedModel, strict: bool) -> None:
    """When time is up every stream gets an error event in its dialect and ends as it should, and every other request gets 503."""
    lifecycle = Lifecycle(Phase.SERVING)
    held = [says("Hello")[0], HOLD]
    with living(model, lifecycle, lambda request: held, strict_tgi=strict) as served:
        streams = {path: served.send(path, body) for path, (body, _) in STREAMS.items()}
        for connection in streams.values():
            read_until(connection, b"Hello")
        wholes = [
            served.send(path, body) for path, body in (("/generate", '{"inputs":"Hi"}'), ("/v1/completions", '{"prompt":"a"}'))
        ]
        while b"tgi_request_count 6" not in served.client.get("/metrics").content:
            pass
        served.server.call_soon(lifecycle.end)
        for path, connection in streams.items():
            with connection:
                tail = read_until(connection, b"0\r\n\r\n")
                assert STREAMS[path][1] in tail and b"shutting down" in tail, (path, tail)
                assert path == "/generate_stream" or strict or b'"code":"shutting_down"' in tail
        for connection in wholes:
            with connection:
                answer = read_until(connection, b'"shutting_down"}')
                assert answer.startswith(b"HTTP/1.1 503") and b"retry-after: 1\r\n" in answer
        if not strict:
            assert_closed(served, "shutting_down")


def test_a_server_that_drains_can_lose_its_shard() -> None:
    """Probes are told that it drains, and the scheduler's loop that there is no shard."""
    lifecycle = Lifecycle(Phase.SERVING)
    lifecycle.draining()
    lifecycle.restarting("the shard was lost")
    assert (lifecycle.phase, lifecycle.reason) == (Phase.DRAINING, "the server is shutting down")
    assert (lifecycle.shard, lifecycle.loss) == (Phase.RESTARTING, "the shard was lost")
    lifecycle.serving()
    assert (lifecycle.phase, lifecycle.shard) == (Phase.DRAINING, Phase.SERVING) and lifecycle.accepts and not lifecycle.ready
    lifecycle.failed("restarted too often")
    assert (lifecycle.phase, lifecycle.reason) == (Phase.FAILED, "restarted too often")


@given(st.lists(st.sampled_from(["serving", "restarting", "draining", "failed", "progress"])))
def test_no_way_back(events: list[str]) -> None:
    """Whatever happens: failed is the end, draining ends in nothing else, and only a server that is ready says so."""
    lifecycle, seen = Lifecycle(), [Phase.STARTING]
    calls = {"restarting": ("lost",), "failed": ("why",), "progress": ("load", 1, 2, "B")}
    for event in events:
        getattr(lifecycle, event)(*calls.get(event, ()))
        seen.append(lifecycle.phase)
        assert lifecycle.ready == (lifecycle.phase is Phase.SERVING) and lifecycle.live == (lifecycle.phase is not Phase.FAILED)
        assert lifecycle.describe()["phase"] == lifecycle.phase.value
    if Phase.FAILED in seen:
        assert set(seen[seen.index(Phase.FAILED) :]) == {Phase.FAILED}
    if Phase.DRAINING in seen:
        assert set(seen[seen.index(Phase.DRAINING) :]) <= {Phase.DRAINING, Phase.FAILED}
