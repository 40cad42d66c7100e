"""Every field of the bodies of OpenAI, vLLM and SGLang, as the table says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tgi_router import ServedModel, create_app
from tgi_router.openai_bodies import ChatBody, CompletionBody
from tgi_router.request_fields import FIELDS, WARNING, RequestField, Route, Treatment
from tgi_router.templates import ChatTemplates

from scripts.request_fields import FILE, document
from tests.router.conftest import Serve
from tests.router.scripted import ScriptedGenerator, says
from tests.router.serving import Served, already, serving
from tests.router.test_openai import chat, complete
from tgi_core.config import Settings
from tgi_core.scheduler.types import Limits

ROOMY = Limits(2000, 2048)
NEEDS: dict[str, dict[str, Any]] = {"stream_options": {"stream": True}, "top_logprobs": {"logprobs": True}}
"""What else a field wants in its body."""


def routes_of(field: RequestField) -> list[Route]:
    """The routes that have a field."""
    return [Route.CHAT, Route.COMPLETIONS] if field.route is Route.BOTH else [field.route]


CASES = [pytest.param(field, route, id=f"{route.value} {field.name}") for field in FIELDS for route in routes_of(field)]


@pytest.fixture(scope="module")
def roomy(model: ServedModel) -> Iterator[Served]:
    """A server with room for tools."""
    generator = ScriptedGenerator(lambda request: says("aa"), limits=ROOMY)
    settings = Settings(enable_prefill_logprobs=True)
    with serving(lambda made: create_app(settings, model, made), already(generator)) as served:
        yield served


def ask(served: Served, route: Route, **more: Any) -> httpx.Response:
    """A request with a field."""
    return chat(served, **more) if route is Route.CHAT else complete(served, **{"prompt": "Hi", **more})


@pytest.mark.parametrize(("field", "route"), CASES)
@pytest.mark.parametrize("stream", [False, True])
def test_treatment(roomy: Served, field: RequestField, route: Route, stream: bool) -> None:
    """An honoured field is one of the body's and costs no warning; a refused one is 422 with its name; an ignored one is named in a
    header, of a stream too; null and what asks for nothing are neither."""
    if field.name in ("best_of", "prompt_logprobs") and stream:
        return
    answer = ask(roomy, route, **{"stream": stream, **NEEDS.get(field.name, {}), field.name: field.sample})
    if field.treatment is Treatment.REFUSED:
        assert answer.status_code == 422 and field.name in answer.json()["error"]["message"].lower()
    else:
        assert answer.status_code == 200, answer.text
        warned = {WARNING: f"ignored fields: {field.name}"} if field.treatment is Treatment.IGNORED else {}
        assert {name: value for name, value in answer.headers.items() if name == WARNING} == warned
    assert (field.name in (ChatBody if route is Route.CHAT else CompletionBody).model_fields) is (
        field.treatment is Treatment.HONOURED or field.name == "suffix"
    )
    if field.treatment is not Treatment.HONOURED:
        for value in (None, *field.neutral):
            answer = ask(roomy, route, **{"stream": stream, field.name: value})
            assert answer.status_code == 200 and WARNING not in answer.headers, (value, answer.text)


def test_all_fields_of_the_bodies_are_listed() -> None:
    """The table has every field that the bodies have, but for TGI's own."""
    listed = {route: {each.name for each in FIELDS if route in routes_of(each)} for route in Route}
    assert set(ChatBody.model_fields) - listed[Route.CHAT] == {"tool_prompt"}
    assert set(CompletionBody.model_fields) - listed[Route.COMPLETIONS] == set()
    assert len({(each.name, route) for each in FIELDS for route in routes_of(each)}) == len(CASES)


def test_unknown_names(roomy: Served) -> None:
    """A name that nobody knows is told, since it may be misspelt; what cannot be a name is counted, and so are many."""
    assert chat(roomy, max_token=3, maxtokens=None).headers[WARNING] == "ignored fields: max_token"
    odd = {"a b": 1, "x\r\ny: z": 1, "é": 1, "n" * 50: 1, "": 1}
    assert complete(roomy, prompt="Hi", **odd).headers[WARNING] == "ignored fields: 5 more"
    many = {f"f{number}": 1 for number in range(100)}
    assert chat(roomy, **many).headers[WARNING] == "ignored fields: f0, f1, f2, f3, f4, f5, f6, f7, 92 more"


def test_strictly_tgi(serve: Serve) -> None:
    """TGI ignores all that it does not know, without a word."""
    served, generator = serve(strict_tgi=True, scripted={"limits": ROOMY})
    others = {each.name: each.sample for each in FIELDS if each.route is not Route.COMPLETIONS}
    own = {"model", "max_tokens", "temperature", "top_p", "seed", "stop", "n", "stream", "messages", "logprobs", "stream_options"}
    tgi = own | {"frequency_penalty", "presence_penalty", "logit_bias", "tools", "tool_choice", "response_format", "top_logprobs"}
    answer = chat(served, **{name: value for name, value in others.items() if name not in tgi})
    assert answer.status_code == 200 and WARNING not in answer.headers
    request = generator.submitted.get_nowait()
    assert request.grammar is None and request.sampling.top_k == 0 and not request.stopping.ignore_eos


def test_what_is_honoured_reaches_the_shard(serve: Serve) -> None:
    """vLLM's parameters mean under /v1 what they mean there."""
    served, generator = serve(scripted={"limits": ROOMY})
    given = {"top_k": 5, "repetition_penalty": 1.5, "ignore_eos": True, "truncate_prompt_tokens": 2, "seed": -1, "min_p": 0.25}
    for answer in (chat(served, **given), complete(served, prompt="one two three four", **given)):
        assert answer.status_code == 200, answer.text
        request = generator.submitted.get_nowait()
        assert (request.sampling.top_k, request.sampling.repetition_penalty, request.sampling.min_p) == (5, 1.5, 0.25)
        assert request.stopping.ignore_eos and len(request.input_ids) == 2
    for nothing in ({"top_k": -1}, {"top_k": 0}, {"top_k": 5, "temperature": 0}, {"truncate_prompt_tokens": -1}):
        assert chat(served, **nothing).status_code == 200
        assert generator.submitted.get_nowait().sampling.top_k == 0
    assert len({(chat(served, seed=-1), generator.submitted.get_nowait().sampling.seed)[1] for _ in range(3)}) == 3


@pytest.mark.parametrize(
    ("given", "source"),
    [
        ({"guided_json": {"type": "integer"}}, '{"type":"integer"}'),
        ({"guided_json": '{"type": "integer"}'}, '{"type":"integer"}'),
        ({"guided_regex": "[ab]+"}, "[ab]+"),
        ({"regex": "[ab]+"}, "[ab]+"),
        ({"guided_choice": ["a.b", "c/d e"]}, "a\\.b|c/d\\ e"),
        ({"structured_outputs": {"json": {"type": "null"}}}, '{"type":"null"}'),
        ({"structured_outputs": {"regex": "x", "choice": None}}, "x"),
        ({"structured_outputs": {"choice": ["yes", "ü\n"]}}, "yes|ü\\\n"),
        ({"structured_outputs": {"json_object": True}}, '{"type":"object"}'),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, 'start: "a"'),
        ({"guided_grammar": 'root ::= "a"'}, 'root ::= "a"'),
        ({"ebnf": 'root ::= "a"'}, 'root ::= "a"'),
    ],
)
def test_constraints(serve: Serve, given: dict[str, Any], source: str) -> None:
    """Each way to write a constraint becomes a grammar that compiles, on both routes."""
    served, generator = serve()
    for answer in (chat(served, **given), complete(served, prompt="Hi", **given)):
        assert answer.status_code == 200, answer.text
        grammar = generator.submitted.get_nowait().grammar
        assert grammar is not None and grammar.source == source


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"guided_json": {}, "guided_regex": "a"}, "give `guided_json` or `guided_regex`, not both"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "give `response_format` or `regex`, not both"),
        ({"structured_outputs": {"structural_tag": "x"}}, "`structured_outputs.structural_tag` is not supported"),
        ({"ebnf": "root ::= x", "guided_grammar": "start: x"}, "give `guided_grammar` or `ebnf`, not both"),
        ({"guided_grammar": "root ::= x"}, "Rule 'x' not found"),
        ({"guided_choice": []}, "needs at least one text"),
        ({"structured_outputs": {"regex": "("}}, "grammar is not valid"),
    ],
)
def test_constraints_that_are_none(roomy: Served, given: dict[str, Any], text: str) -> None:
    """Two constraints, or one that cannot be held, are refused."""
    answer = chat(roomy, **given)
    assert answer.status_code == 422 and text in answer.json()["error"]["message"]


def test_variables_of_the_template(serve: Serve, model: ServedModel) -> None:
    """chat_template_kwargs and reasoning_effort are variables of the template; they neither replace the chat's own nor act as special
    tokens."""
    source = "{% for m in messages %}{{ m.content }}{% endfor %}|{{ enable_thinking }}|{{ reasoning_effort }}|{{ note }}"
    served, _ = serve(changes={"chat_templates": ChatTemplates({"default": source})}, scripted={"limits": ROOMY})
    special = min(model.tokenizer.special_texts)
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "reasoning_effort": "low",
        "chat_template_kwargs": {"enable_thinking": False, "messages": [], "note": special},
    }
    answer = served.client.post("/chat_tokenize", json=body).json()
    assert answer["templated_text"] == f"Hi|False|low|{special}"
    assert special not in [token["text"] for token in answer["tokenize_response"]]


def test_the_page_is_fresh() -> None:
    """docs/request-fields.md is what the table says."""
    assert FILE.read_text(encoding="utf-8") == document()
