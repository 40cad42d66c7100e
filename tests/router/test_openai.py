"""POST /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tgi_router.templates import ChatTemplates

from tests.router.conftest import Serve
from tests.router.scripted import EVERYTHING, NOTHING, detailed, says
from tests.router.serving import Served
from tgi_core.scheduler.types import GenerationFailed, RequestFailed
from tgi_core.wire.types import FinishReason

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}


def chunks(text: str) -> list[Any]:
    """The payloads of a stream, which must end with [DONE]."""
    *events, done, nothing = text.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def tokens(prompt: int, completion: int) -> dict[str, Any]:
    """The usage of so many tokens, none of them found in the cache."""
    total = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**total, "prompt_tokens_details": {"cached_tokens": 0}}


def chat(served: Served, **more: Any) -> Any:
    """A chat call."""
    return served.client.post("/v1/chat/completions", json={**CHAT, **more})


def complete(served: Served, **more: Any) -> Any:
    """A completions call."""
    return served.client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 8, **more})


def test_chat_answer(hello: Served) -> None:
    """A chat answer has OpenAI's shape in TGI's key order, with an id, and echoes the name of the model."""
    answer = chat(hello, model="dummy").json()
    assert list(answer) == ["object", "id", "created", "model", "system_fingerprint", "choices", "usage"]
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-") and answer["model"] == "dummy"
    message = {"role": "assistant", "content": "Hello world"}
    assert answer["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    usage = answer["usage"]
    assert usage["completion_tokens"] == 3 and usage["total_tokens"] == usage["prompt_tokens"] + 3


@pytest.mark.parametrize("name", [None, "tgi"])
def test_chat_names_the_served_model(hello: Served, name: str | None) -> None:
    """No name, and TGI's placeholder, mean the served model."""
    assert chat(hello, model=name).json()["model"] == "demo"


def test_chat_stream_bytes(hello: Served) -> None:
    """The role comes once, special tokens add no text, the last chunk has the reason; then [DONE]."""
    text = chat(hello, stream=True).text
    first = chunks(text)[0]
    head = (
        f'data: {{"object":"chat.completion.chunk","id":"{first["id"]}","created":{first["created"]},"model":"demo",'
        f'"system_fingerprint":"{first["system_fingerprint"]}","choices":[{{"index":0,"delta":{{'
    )
    middle = '},"logprobs":null,"finish_reason":'
    assert text == (
        f'{head}"role":"assistant","content":"Hello"{middle}null}}],"usage":null}}\n\n'
        f'{head}"content":" world"{middle}null}}],"usage":null}}\n\n'
        f'{head}"content":""{middle}"stop"}}],"usage":null}}\n\ndata: [DONE]\n\n'
    )


def test_chat_stream_usage_on_demand(hello: Served) -> None:
    """include_usage adds a last chunk without a choice."""
    *others, last = chunks(chat(hello, stream=True, stream_options={"include_usage": True}).text)
    assert [each["usage"] for each in others] == [None] * 3
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 3


def test_chat_logprobs(serve: Serve) -> None:
    """Logprobs of tokens and their likeliest rivals, in whole answers and in chunks; asked for only when wanted."""
    served, generator = serve(lambda request: detailed())
    rivals = [{"token": "a", "logprob": -0.1, "bytes": [97]}, {"token": "b", "logprob": None, "bytes": [98]}]
    content = [
        {"token": 'a\n"é', "logprob": -0.1, "bytes": [97, 10, 34, 195, 169], "top_logprobs": rivals},
        {"token": "b", "logprob": None, "bytes": [98], "top_logprobs": []},
    ]
    whole = chat(served, logprobs=True, top_logprobs=2).json()["choices"][0]
    assert whole["logprobs"] == {"content": content} and whole["finish_reason"] == "length"
    streamed = chunks(chat(served, logprobs=True, top_logprobs=2, stream=True).text)
    assert [each["choices"][0]["logprobs"]["content"][0] for each in streamed] == content
    chat(served)
    wants = [generator.submitted.get_nowait().want for _ in range(3)]
    assert [(want.logprobs, want.top_n) for want in wants] == [(True, 2), (True, 2), (False, 0)]


def test_undeclared_logprobs_are_refused(serve: Serve) -> None:
    """A client that asks for logprobs which the backend has not is told so; one that does not ask is served."""
    served, _ = serve(scripted={"capabilities": NOTHING})
    told = {"message": "Input validation error: `logprobs` is not supported by this backend"}
    assert chat(served, logprobs=True).json()["error"].items() >= told.items()
    assert chat(served, logprobs=False).status_code == 200


def test_sampling_follows_openai(serve: Serve) -> None:
    """Chat samples by default; temperature 0 is greedy; top_p 1 is off; an empty or bare stop string is understood."""
    served, generator = serve()
    for more in ({}, {"temperature": 0}, {"top_p": 1.0}, {"stop": "x"}, {"stop": ""}, {"max_completion_tokens": 3}):
        assert chat(served, **more).status_code == 200
    plain, greedy, open_p, bare, empty, alias = (generator.submitted.get_nowait() for _ in range(6))
    assert plain.sampling.do_sample and not greedy.sampling.do_sample
    assert open_p.sampling.do_sample and open_p.sampling.top_p == 1.0
    assert (bare.stopping.stop, empty.stopping.stop) == (("x",), ())
    assert (plain.stopping.max_new_tokens, alias.stopping.max_new_tokens) == (8, 3)


def test_stop_string_ends_with_stop(serve: Serve) -> None:
    """A stop string ends an answer with OpenAI's reason on both routes, streamed or not."""
    served, _ = serve(lambda request: says("a", "b", reason=FinishReason.STOP_SEQUENCE))
    for call in (chat, complete):
        assert call(served, stop=["b"]).json()["choices"][0]["finish_reason"] == "stop"
        reasons = [each["choices"][0]["finish_reason"] for each in chunks(call(served, stop=["b"], stream=True).text)]
        assert reasons == [None, "stop"]


def test_choices(serve: Serve) -> None:
    """`n` answers to one prompt, whose tokens count once; from one seed each has its own, and with none each is drawn."""
    texts = iter("abcdefghijkl")
    served, generator = serve(lambda request: says(next(texts), reason=FinishReason.LENGTH))
    answer = chat(served, n=3, seed=2**64 - 1)
    assert [(each["index"], each["message"]["content"]) for each in answer.json()["choices"]] == [(0, "a"), (1, "b"), (2, "c")]
    requests = [generator.submitted.get_nowait() for _ in range(3)]
    assert [request.sampling.seed for request in requests] == [2**64 - 1, 0, 1]
    length = len(requests[0].input_ids)
    assert answer.json()["usage"] == tokens(length, 3)
    assert (answer.headers["x-prompt-tokens"], answer.headers["x-generated-tokens"]) == (str(length), "3")
    streamed = [each["choices"][0] for each in chunks(chat(served, n=3, stream=True).text)]
    assert sorted((each["index"], each["delta"]["content"]) for each in streamed) == [(0, "d"), (1, "e"), (2, "f")]
    assert len({generator.submitted.get_nowait().sampling.seed for _ in range(3)}) == 3
    texts_of_two = complete(served, prompt=["x", "y"], n=2).json()["choices"]
    assert [(each["index"], each["text"]) for each in texts_of_two] == [(0, "g"), (1, "h"), (2, "i"), (3, "j")]


def test_penalties_and_biases(serve: Serve) -> None:
    """OpenAI's presence_penalty and logit_bias reach the shard as they are; a backend without them refuses them."""
    served, generator = serve()
    more = {"presence_penalty": -1.5, "logit_bias": {"5": -100, "7": 1.5}}
    assert chat(served, **more).status_code == 200
    sampling = generator.submitted.get_nowait().sampling
    assert (sampling.presence_penalty, sampling.logit_bias) == (-1.5, ((5, -100.0), (7, 1.5)))
    assert sampling.repetition_penalty == 1.0
    served, _ = serve(scripted={"capabilities": NOTHING})
    for name, value in more.items():
        assert chat(served, **{name: value}).json()["error"]["message"].endswith(f"`{name}` is not supported by this backend")


def test_model_names_an_adapter(serve: Serve) -> None:
    """A known name chooses its adapter on every route; an unknown one, and none, mean the base model."""
    served, generator = serve(scripted={"capabilities": replace(EVERYTHING, adapters=("poet",))})
    for name in ("poet", "other", "tgi", None):
        assert chat(served, model=name).status_code == complete(served, model=name).status_code == 200
        body = {"inputs": "Hi", "parameters": {"adapter_id": name}}
        assert served.client.post("/generate", json=body).status_code == 200
        adapters = {generator.submitted.get_nowait().adapter for _ in range(3)}
        assert adapters == ({"poet"} if name == "poet" else {None})


def test_null_fields_mean_absent(hello: Served) -> None:
    """OpenAI's clients may send null for every optional field."""
    names = (
        "model", "temperature", "top_p", "seed", "stop", "frequency_penalty", "presence_penalty", "stream", "stream_options",
        "logprobs", "top_logprobs", "logit_bias", "n", "tools", "tool_choice", "tool_prompt", "response_format",
    )  # fmt: skip
    assert chat(hello, **dict.fromkeys(names)).status_code == 200


@pytest.mark.parametrize(
    ("more", "error_type", "text"),
    [
        ({"presence_penalty": 2.5}, "validation", "Input validation error: `presence_penalty` must be >= -2.0 and <= 2.0"),
        ({"logit_bias": {"x": 1}}, "validation", "Input validation error: `logit_bias` maps token ids to numbers"),
        ({"logit_bias": {"5": 101}}, "validation", "Input validation error: `logit_bias` values must be >= -100.0 and <= 100.0"),
        ({"logit_bias": {"2048": 1}}, "validation", "Input validation error: `logit_bias` names tokens by their ids, which are"),
        ({"n": 0}, "validation", "Input validation error: `n` must be > 0 and <= 16. Given: 0"),
        ({"n": 2**32 - 1}, "validation", "Input validation error: `n` must be > 0 and <= 16. Given: 4294967295"),
        ({"stop": "x" * 1025}, "validation", "Input validation error: `stop` strings must have at most 1024 characters"),
        ({"tools": TOOLS, "tool_choice": "g"}, "tool_error", "Tool error: Tool with name g not found"),
        ({"tools": TOOLS * 129}, "tool_error", "Tool error: at most 128 tools are supported. Given: 129"),
        (
            {"tools": TOOLS, "response_format": {"type": "regex", "value": "a"}},
            "tool_error",
            "Tool error: `tools` cannot be combined with a `response_format` of the type `regex`",
        ),
        (
            {"response_format": {"type": "text", "json_schema": {"schema": {}}}},
            "validation",
            "Input validation error: grammar is not valid: the type `text` has no field `json_schema`",
        ),
        (
            {"response_format": {"type": "json_object", "schema": {}, "value": {}}},
            "validation",
            "Input validation error: grammar is not valid: give `value` or `schema`, not both",
        ),
        ({"messages": []}, "validation", "Input validation error: `messages` must have at least one message"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "template_error", "Template error: Unknown role: robot"),
    ],
)
def test_chat_refusals(hello: Served, more: dict[str, Any], error_type: str, text: str) -> None:
    """What cannot be honoured is told with status 422, streamed or not, in OpenAI's error object with TGI's error_type."""
    for stream in (False, True):
        answer = chat(hello, stream=stream, **more)
        assert answer.status_code == 422
        error = answer.json()["error"]
        assert (answer.json()["error_type"], error["code"]) == (error_type, error_type)
        assert error["message"].startswith(text)


@pytest.mark.parametrize(
    "more",
    [
        {"tools": []},
        {"tools": TOOLS, "tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"presence_penalty": 0, "n": 1},
    ],
)
def test_chat_accepts_what_asks_for_nothing(hello: Served, more: dict[str, Any]) -> None:
    """Tools that are not to be used, a format of plain text and a penalty of 0 are plain chat."""
    assert chat(hello, **more).json()["choices"][0]["message"]["content"] == "Hello world"


@pytest.mark.parametrize(
    ("response_format", "held_to"),
    [
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_object", "value": SCHEMA}, SCHEMA),
        ({"type": "json_object", "schema": SCHEMA}, SCHEMA),
        ({"type": "json_object", "schema": None}, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}, SCHEMA),
    ],
)
def test_response_formats(serve: Serve, response_format: dict[str, Any], held_to: dict[str, Any]) -> None:
    """A schema counts wherever clients put it: TGI's, OpenAI's, or beside `json_object` as LangChain does."""
    served, generator = serve()
    assert chat(served, response_format=response_format).status_code == 200
    grammar = generator.submitted.get_nowait().grammar
    assert grammar is not None and json.loads(grammar.source) == held_to


def test_refusals_of_the_past(serve: Serve) -> None:
    """What the assistant refused with is its text, as a part or in place of the content."""
    served, _ = serve(changes={"chat_templates": ChatTemplates({"default": "{{ messages[0].content }}"})})
    for message in ({"content": [{"type": "refusal", "refusal": "No."}]}, {"content": None, "refusal": "No."}):
        body = {"messages": [{"role": "assistant", **message}]}
        assert served.client.post("/chat_tokenize", json=body).json()["templated_text"] == "No."


def test_developers_are_systems_where_there_are_none(serve: Serve) -> None:
    """A template that refuses the role `developer` gets `system`; one that knows it gets it; other roles are still refused."""
    told = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    check = "{% if m.role not in ['system', 'user'] %}{{ raise_exception('no ' + m.role) }}{% endif %}"
    picky = f"{{% for m in messages %}}{check}{{% endfor %}}"
    body: Any = {"messages": [{"role": "developer", "content": "a"}, {"role": "user", "content": "b"}]}
    for source, text in ((told, "developer:a;user:b;"), (picky + told, "system:a;user:b;")):
        served, _ = serve(changes={"chat_templates": ChatTemplates({"default": source})})
        assert served.client.post("/chat_tokenize", json=body).json()["templated_text"] == text
    body["messages"][1]["role"] = "robot"
    assert chat(served, **body).json()["error"]["message"] == "Template error: no robot"


def test_twenty_top_logprobs(serve: Serve) -> None:
    """OpenAI's limit of `top_logprobs` is the default."""
    served, generator = serve()
    assert chat(served, logprobs=True, top_logprobs=20).status_code == 200
    assert generator.submitted.get_nowait().want.top_n == 20
    assert chat(served, logprobs=True, top_logprobs=21).status_code == 422


def test_stream_errors_have_a_status(serve: Serve) -> None:
    """What is known before the first token is told by a status, also where a stream was asked for."""
    served, _ = serve(changes={"chat_templates": None})
    told = {"message": "Template error: template not found", "type": "invalid_request_error", "param": None}
    answer = chat(served, stream=True)
    assert answer.status_code == 422
    assert answer.json() == {"error": {**told, "code": "template_error"}, "error_type": "template_error"}
    answer = complete(served, stream=True, top_p=7)
    assert (answer.status_code, answer.json()["error_type"]) == (422, "validation")


def test_errors_inside_a_stream(serve: Serve) -> None:
    """A failure after the first token is an event with the status that it would have had; [DONE] follows."""
    served, _ = serve(lambda request: [says("a")[0], GenerationFailed("device lost")])
    for call in (chat, complete):
        error = chunks(call(served, stream=True).text)[-1]
        assert (error["error_type"], error["error"]["http_status_code"]) == ("generation", 503)
        assert error["error"]["message"] == "Request failed during generation: Server error: device lost"


def test_a_fault_of_the_request_is_no_lost_shard(serve: Serve) -> None:
    """What would fail again is 424 under /v1 as well, without advice to try again; a shard that is gone is 503 with it."""
    for error, status in ((RequestFailed("grammar is not valid: too large"), 424), (GenerationFailed("gone"), 503)):
        served, _ = serve(lambda request, error=error: [error])
        for answer in (chat(served), complete(served)):
            assert answer.status_code == status and answer.json()["error_type"] == "generation"
            assert ("retry-after" in answer.headers) is ("x-should-retry" in answer.headers) is (status == 503)


def test_min_p(serve: Serve) -> None:
    """vLLM's field reaches the generator from either route; beside a temperature of 0 the answer is greedy all the same."""
    served, generator = serve()
    for call in (chat, complete):
        assert call(served, min_p=0.25).status_code == call(served, min_p=0.25, temperature=0).status_code == 200
        drawn, greedy = (generator.submitted.get_nowait().sampling for _ in range(2))
        assert (drawn.do_sample, drawn.min_p, greedy.do_sample) == (True, 0.25, False)
        refused = call(served, min_p=1.5)
        assert (refused.status_code, refused.json()["error"]["message"]) == (
            422,
            "Input validation error: `min_p` must be >= 0.0 and <= 1.0",
        )
