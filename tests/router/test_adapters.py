"""Adapters as clients see them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.router.serving import Served
from tests.telemetry.server import instance, scrape, value

NAMES = ("poet", "org/cook")

HOSTILE = (
    *("../poet", "poet/../../etc/passwd", "/etc/passwd", "/", "~/adapter", "..", "./poet", "..\\poet", "\\\\host\\share"),
    *("poet\0", "\0", "poet\n", "a\x1b[0m", "file:///etc/passwd/..", "x" * 4096, "\u202epoet", "\ud800"),
)

_opened: list[str] | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event in ("open", "os.listdir", "os.scandir"):
        _opened.append(str(arguments[0]))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """The whole instance with two adapters."""
    with instance(session={"adapters": NAMES}) as running:
        yield running


@pytest.fixture
def opened(served: Served) -> Iterator[list[str]]:
    """Every file and folder that this process opens meanwhile; the server is in it."""
    global _opened
    if not getattr(sys, "_tgi_adapter_hook", False):
        sys.addaudithook(_hook)
        sys._tgi_adapter_hook = True  # type: ignore[attr-defined]  # a hook stays for the life of the process
    calls(served, None)  # the first chat starts the process that renders templates, with /dev/null for its input
    _opened = []
    yield _opened
    _opened = None


def generate(served: Served, name: str | None) -> Any:
    """A native answer."""
    body = {"inputs": "The sea", "parameters": {"adapter_id": name, "max_new_tokens": 4}}
    return served.client.post("/generate", json=body)


def calls(served: Served, name: str | None) -> list[Any]:
    """The name on every kind of route that takes one."""
    native = {"inputs": "The sea", "parameters": {"adapter_id": name, "max_new_tokens": 4}}
    chat = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    text = {"model": name, "prompt": "The sea", "max_tokens": 4, "temperature": 0}
    post = served.client.post
    return [
        post("/generate", json=native),
        post("/", json=native),
        post("/invocations", json=native),
        post("/v1/chat/completions", json=chat),
        post("/v1/completions", json=text),
    ]


def test_each_name_gets_its_own_answer(served: Served) -> None:
    """adapter_id and model choose an adapter; the model's own name, `tgi`, an unknown name and none mean the model itself."""
    base = generate(served, None).json()["generated_text"]
    by_name = {name: generate(served, name).json()["generated_text"] for name in (*NAMES, "demo", "tgi", "dummy", "gpt-4o", "")}
    assert len({base, by_name["poet"], by_name["org/cook"]}) == 3
    assert {by_name[name] for name in ("demo", "tgi", "dummy", "gpt-4o", "")} == {base}
    for name in NAMES:
        *_, chat, text = calls(served, name)
        assert text.json()["choices"][0]["text"] == by_name[name] and chat.json()["model"] == name


def test_streams_name_adapters_too(served: Served) -> None:
    """The same tokens come as events."""
    body = {"model": "poet", "prompt": "The sea", "max_tokens": 4, "temperature": 0, "stream": True}
    events = served.client.post("/v1/completions", json=body).text
    assert '"text_completion"' in events and events.rstrip().endswith("[DONE]")


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name)[:30])
def test_a_name_is_only_a_key(served: Served, opened: list[str], name: str) -> None:
    """What could be a path, or no name at all, is 422 on every route, in the caller's words; and no file is opened for it."""
    if name == "\ud800":
        for path, body in (("/generate", '{"inputs":"a","parameters":{"adapter_id":"\\ud800"}}'),):
            answer = served.client.post(path, content=body, headers={"content-type": "application/json"})
            assert 400 <= answer.status_code < 500
    else:
        answers = calls(served, name)
        assert [answer.status_code for answer in answers] == [422] * len(answers)
        for answer, field in zip(answers, ("adapter_id",) * 3 + ("model",) * 2, strict=True):
            assert field in answer.text or "256 characters" in answer.text
    assert opened == []


def test_no_file_is_opened_for_a_name(served: Served, opened: list[str]) -> None:
    """Nor for a name that is known, or might be."""
    for name in ("poet", "org/cook", "dummy", "org/other", "C:/adapter", "https://host/adapter"):
        assert generate(served, name).status_code == 200
    assert opened == []


def test_they_are_listed(served: Served) -> None:
    """/v1/models has the model first, then its adapters; /info has their names."""
    models = served.client.get("/v1/models").json()["data"]
    assert [(each["id"], each["owned_by"]) for each in models] == [("demo", "demo"), ("poet", "demo"), ("org/cook", "demo")]
    assert served.client.get("/info").json()["adapters"] == list(NAMES)


def test_strict_lists_the_model_alone() -> None:
    """As TGI does."""
    with instance(session={"adapters": NAMES}, strict_tgi=True) as served:
        assert [each["id"] for each in served.client.get("/v1/models").json()["data"]] == ["demo"]


def test_they_are_counted(served: Served) -> None:
    """Each adapter has a series from the start, and no other name ever gets one."""
    before = scrape(served)
    for name in ("poet", "poet", "dummy", None, "../poet"):
        generate(served, name)
    after = scrape(served)
    assert (
        value(after, "tgi_request_adapter_count", adapter="poet")
        == value(before, "tgi_request_adapter_count", adapter="poet") + 2
    )
    series = {labels for name, labels in after if name == "tgi_request_adapter_count"}
    assert series == {frozenset({("adapter", name)}) for name in NAMES}


def test_prefixes_are_each_adapters_own(served: Served) -> None:
    """Equal prompts reuse the cache of their own adapter alone: the second answer to each is its first one, with hits."""
    prompt = "Once upon a time there was a sea, and nobody had ever seen it. " * 4

    def ask(name: str | None) -> str:
        body = {"inputs": prompt, "parameters": {"adapter_id": name, "max_new_tokens": 6}}
        return str(served.client.post("/generate", json=body).json()["generated_text"])

    def hits() -> int:
        return int(served.client.get("/info").json()["prefix_caching"]["hit_tokens"])

    before = hits()
    first = [ask(name) for name in (None, *NAMES)]
    assert hits() == before and len(set(first)) == 3
    assert [ask(name) for name in (None, *NAMES)] == first
    assert hits() > before
