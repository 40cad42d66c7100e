"""Logs and request ids."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.router.serving import Served, read_until
from tests.serve.process import ServerProcess
from tests.serve.process import served as serving_process
from tests.telemetry.server import instance, scrape, value
from tgi_core.backend import InvalidRequest
from tgi_core.telemetry.logs import JsonFormatter, PlainFormatter
from tgi_core.telemetry.request_record import begin, duration

CANARY = "xyzzycanary"
FRESH = re.compile("[0-9a-f]{32}")
DURATION = re.compile(r"\d+(\.\d+)?(s|ms|µs|ns)")
TIMES = ("total_time", "validation_time", "queue_time", "inference_time", "time_per_token")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A server in this process."""
    with instance() as running:
        yield running


@pytest.mark.parametrize("wanted", ["a", "A.b_c-9", "x" * 64, "123e4567-e89b-12d3-a456-426614174000"])
@pytest.mark.parametrize("path", ["/health", "/generate", "/nowhere", "/v1/chat/completions"])
def test_a_plain_id_comes_back(served: Served, wanted: str, path: str) -> None:
    """A client's request id is in its answer, whatever the answer is."""
    answer = served.client.request("GET" if path == "/health" else "POST", path, json={}, headers={"x-request-id": wanted})
    assert answer.headers.get_list("x-request-id") == [wanted]


@pytest.mark.parametrize("wanted", [None, "", "x" * 65, "a b", "a\tb", 'a"b', "a/b", "é", "a;b"])
def test_any_other_id_is_replaced(served: Served, wanted: str | None) -> None:
    """An id that is no plain word, and none at all, is replaced by a fresh one."""
    headers = [] if wanted is None else [(b"x-request-id", wanted.encode())]
    found = [served.client.get("/health", headers=headers).headers["x-request-id"] for _ in range(2)]
    assert all(FRESH.fullmatch(id) for id in found)
    assert found[0] != found[1]


@pytest.fixture(scope="module", params=[(), ("--json-output",)], ids=["plain", "json"])
def used(request: pytest.FixtureRequest) -> Iterator[tuple[bool, list[str]]]:
    """Everything that a server has printed which was given prompts with a canary, well and badly, until it ended: is it JSON; lines."""
    with serving_process("--backend", "reference", *request.param, extra={"LOG_LEVEL": "debug"}) as server:
        _use(server)
        assert server.stop() == 0
        server.close()
    yield bool(request.param), server.lines


def _use(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        good = {"max_new_tokens": 3, "stop": [CANARY], "seed": 5, "do_sample": True}
        for number, path in enumerate(("/generate", "/generate_stream")):
            answer = client.post(path, json={"inputs": CANARY, "parameters": good}, headers={"x-request-id": f"good-{number}"})
            assert answer.status_code == 200
        messages = [{"role": "user", "content": CANARY}]
        answer = client.post(
            "/v1/chat/completions", json={"messages": messages, "max_tokens": 3, "model": CANARY, "user": CANARY}
        )
        assert answer.status_code == 200
        for id, path, body in (
            ("bad-0", "/generate", {"inputs": CANARY, "parameters": {"temperature": -1}}),
            ("bad-1", "/v1/chat/completions", {"messages": [{"role": CANARY, "content": CANARY}]}),
            ("odd-0", "/generate", {"inputs": CANARY, "parameters": {"seed": CANARY}}),
            ("odd-1", "/generate", {"inputs": CANARY, "parameters": {"grammar": {"type": "regex", "value": f"({CANARY}"}}}),
            ("odd-2", "/v1/chat/completions", {"messages": messages, "tools": [{CANARY: CANARY}]}),
            ("odd-3", f"/{CANARY}", {}),
        ):
            assert client.post(path, json=body, headers={"x-request-id": id}).status_code >= 400
        client.post("/generate", content=b'{"inputs":"' + CANARY.encode(), headers={"content-type": "application/json"})
        with client.stream("POST", "/generate_stream", json={"inputs": CANARY, "parameters": {"max_new_tokens": 500}}) as left:
            next(left.iter_lines())
        while "tgi_request_cancelled 0" in client.get("/metrics").text:
            pass


def test_no_prompt_in_any_line(used: tuple[bool, list[str]]) -> None:
    """No prompt, stop string, grammar, role, tool, model, user or path of a client is in what a server prints, at the lowest level."""
    assert CANARY not in "".join(used[1])


def test_one_line_per_request(used: tuple[bool, list[str]]) -> None:
    """Each request that was answered has one line `Success`, each that was not one line that says why; in JSON every line is JSON."""
    is_json, lines = used
    told = [json.loads(line)["message"] if is_json else line.rstrip() for line in lines]
    assert sum(message.endswith("Success") for message in told) == 3
    assert sum(message.endswith("Connected") for message in told) == 1
    assert sum(message.endswith("Failed: dropped") for message in told) == 1
    for id, ending in (("good-0", "Success"), ("bad-0", "Failed: validation"), ("bad-1", "Failed: template")):
        [said] = [message for message, line in zip(told, lines, strict=True) if f'"{id}"' in line and "parameters" in line]
        assert ending in said[-40:]


def test_fields(used: tuple[bool, list[str]]) -> None:
    """The line has TGI's fields, and the id that the client sent."""
    is_json, lines = used
    [line] = [line for line in lines if "good-1" in line and "Success" in line]
    if is_json:
        record = json.loads(line)
        span = record["span"]
        assert record.items() >= {"level": "INFO", "message": "Success", "request_id": "good-1"}.items()
    else:
        begun = re.search(r" INFO (\w+)\{(.*)\}: tgi_router\.request_log: Success$", line)
        assert begun
        span = {name: json.loads(text) for name, text in re.findall(r'(\w+)=(\{.*?\}|"[^"]*"|\S+)', begun[2])}
        span["name"] = begun[1]
    assert span["name"] == "generate_stream"
    assert all(DURATION.fullmatch(span[name]) for name in TIMES)
    assert span["seed"] == 5
    assert span["parameters"].items() >= {"max_new_tokens": 3, "do_sample": True, "stop": 1}.items()
    assert span["generated_tokens"] <= 3


def test_an_error_of_our_own(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A bug in a handler is answered 500 with the request's id, and logged with it and without what it quotes."""

    def fail(*arguments: object, **named: object) -> Any:
        raise KeyError(CANARY)

    with instance() as served:
        monkeypatch.setattr("tgi_router.inference.Inference.call", fail)
        answer = served.client.post("/generate", json={"inputs": "a"}, headers={"x-request-id": "mine"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (500, "mine")
    [record] = [record for record in caplog.records if record.exc_info]
    shown = PlainFormatter().format(record)
    assert "in fail" in shown
    assert shown.endswith("builtins.KeyError")
    assert CANARY not in shown


def test_a_client_that_leaves(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """A client that leaves is told of at level INFO, with nothing of what it would have got."""
    caplog.set_level(logging.INFO)
    with served.send("/generate_stream", '{"inputs":"a","parameters":{"max_new_tokens":900}}') as connection:
        read_until(connection, b"data: ")
    while not value(scrape(served), "tgi_request_cancelled"):
        pass
    while not (told := [record for record in caplog.records if record.getMessage() == "Failed: dropped"]):
        served.client.get("/health")
    assert told[0].levelno == logging.INFO


def _record(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("tgi", logging.ERROR, __file__, 7, message, arguments, info)


def _failed(cause: BaseException, error: BaseException) -> BaseException:
    try:
        raise error from cause
    except type(error):
        raised = sys.exc_info()[1]
    assert raised is not None
    return raised


@pytest.mark.parametrize("formatter", [PlainFormatter(), JsonFormatter()])
def test_tracebacks(formatter: logging.Formatter) -> None:
    """A traceback has every frame and kind of error, causes and members of groups too, but only the texts that are ours."""
    cause = _failed(ValueError(f"invalid: {CANARY}"), InvalidRequest("a rule of the contract"))
    shown = formatter.format(_record("it failed", error=_failed(cause, ExceptionGroup(CANARY, [TypeError(CANARY)]))))
    for part in (
        "builtins.ValueError",
        "InvalidRequest: a rule of the contract",
        "builtins.ExceptionGroup",
        "builtins.TypeError",
    ):
        assert part in shown
    assert f"{__name__}" in shown.replace("/", ".")
    assert CANARY not in shown


def test_a_line_is_a_line() -> None:
    """A message that quotes line breaks or control characters cannot pass for another line."""
    record = _record("odd %s", "name\n2026-01-01 INFO root: all is well\x1b[0m")
    shown = PlainFormatter().format(record)
    assert shown.isprintable()
    assert r"name\n2026" in shown
    assert json.loads(JsonFormatter().format(record))["message"].startswith("odd name\n")


async def test_every_line_of_a_request_has_its_id() -> None:
    """Whatever is logged while a request is handled carries its id."""
    begin("one.two")
    assert "request_id=one.two" in PlainFormatter().format(_record("something"))
    assert json.loads(JsonFormatter().format(_record("something")))["request_id"] == "one.two"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ns"),
        (2.5e-7, "250ns"),
        (3.1e-6, "3.1µs"),
        (0.01225, "12.25ms"),
        (1, "1s"),
        (1.000000001, "1.000000001s"),
        (61.5, "61.5s"),
        (-1, "0ns"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    """Durations are written as TGI writes them."""
    assert duration(seconds) == text
