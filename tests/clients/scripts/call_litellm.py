"""litellm: the providers `openai/` and `huggingface/`, sync and async."""

from __future__ import annotations

import json
import os
from typing import Any

from calls import ANSWER, PROMPT, QUESTION, Script, raises

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it is fetched when the package is imported

import litellm

script = Script()
OPENAI: Any = {"model": "openai/tgi", "api_base": f"{script.url}/v1", "api_key": script.key, "num_retries": 0}
NATIVE: Any = {"model": "huggingface/tgi", "api_base": script.url, "api_key": script.key, "num_retries": 0}
ASKED: Any = [{"role": "user", "content": QUESTION}]
GREEDY: Any = {"messages": ASKED, "temperature": 0, "max_tokens": 40}
SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
TOOLS: Any = {
    "tools": [{"type": "function", "function": {"name": "visit", "description": "Visits a city.", "parameters": SCHEMA}}],
    "tool_choice": "required",
    "max_tokens": 100,
}


def is_city(text: str) -> bool:
    """Whether a text fits the schema."""
    return json.loads(text)["city"] in {"Paris", "Rome"}


def check_chat(provider: Any) -> None:
    """An answer with usage and reason."""
    answer: Any = litellm.completion(**provider, **GREEDY)
    assert answer.choices[0].message.content == ANSWER and answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > 3 and answer.id


def check_stream(provider: Any) -> None:
    """A streamed answer, which litellm's own builder joins."""
    chunks = list(litellm.completion(**provider, **GREEDY, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    assert chunks[-1].choices[0].finish_reason == "stop"
    whole: Any = litellm.stream_chunk_builder(chunks, messages=ASKED)
    assert whole.choices[0].message.content == ANSWER


def check_tools(provider: Any) -> None:
    """A required tool."""
    choice = litellm.completion(**provider, **(GREEDY | TOOLS)).choices[0]
    called = choice.message.tool_calls[0]
    assert called.id and called.function.name == "visit" and is_city(called.function.arguments)
    assert choice.finish_reason == "tool_calls"


def check_tools_stream(provider: Any) -> None:
    """A streamed call."""
    chunks = list(litellm.completion(**provider, **(GREEDY | TOOLS | {"parallel_tool_calls": False}), stream=True))
    whole: Any = litellm.stream_chunk_builder(chunks, messages=ASKED)
    called = whole.choices[0].message.tool_calls[0]
    assert called.id and called.function.name == "visit" and is_city(called.function.arguments)


@script.call
def openai_chat() -> None:
    """A chat."""
    check_chat(OPENAI)


@script.call
def openai_stream() -> None:
    """A stream."""
    check_stream(OPENAI)


@script.call
def openai_stream_usage() -> None:
    """A stream with its usage."""
    chunks = list(litellm.completion(**OPENAI, **GREEDY, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage.completion_tokens > 3


@script.call
def openai_parameters() -> None:
    """What else it passes on."""
    more: Any = {"top_p": 1, "n": 2, "seed": 3, "stop": ["!"], "presence_penalty": 0.1, "frequency_penalty": 0.1}
    answer: Any = litellm.completion(**OPENAI, messages=ASKED, max_tokens=9, **more, user="me")
    assert len(answer.choices) == 2


@script.call
def openai_tools() -> None:
    """Tools."""
    check_tools(OPENAI)


@script.call
def openai_tools_stream() -> None:
    """Streamed tools."""
    check_tools_stream(OPENAI)


@script.call
def openai_format() -> None:
    """A JSON schema."""
    assert is_city(
        litellm.completion(**OPENAI, **(GREEDY | {"max_tokens": 60}), response_format=FORMAT).choices[0].message.content
    )


@script.call
def openai_text() -> None:
    """A text completion."""
    text: Any = {"model": "text-completion-openai/tgi"}
    answer: Any = litellm.text_completion(**(OPENAI | text), prompt=PROMPT, temperature=0, max_tokens=5)
    assert answer.choices[0].text.startswith(" Paris")


@script.call
def openai_text_stream() -> None:
    """A streamed text completion."""
    text: Any = {"model": "text-completion-openai/tgi"}
    chunks = litellm.text_completion(**(OPENAI | text), prompt=PROMPT, temperature=0, max_tokens=5, stream=True)
    assert "".join(chunk.choices[0].text or "" for chunk in chunks).startswith(" Paris")


@script.call
def openai_error_of_key() -> None:
    """A wrong key."""
    with raises(litellm.AuthenticationError):
        litellm.completion(**(OPENAI | {"api_key": "wrong"}), **GREEDY)


@script.call
def openai_error_of_load() -> None:
    """More than the server takes at once."""
    text: Any = {"model": "text-completion-openai/tgi", "prompt": [PROMPT] * 4, "max_tokens": 1, "n": 8}
    with raises(litellm.RateLimitError):
        litellm.text_completion(**(OPENAI | text))


@script.call
def openai_error_of_validation() -> None:
    """A value out of range has the server's text."""
    with raises(litellm.BadRequestError) as raised:
        litellm.completion(**OPENAI, messages=ASKED, top_p=2)
    assert "top_p" in str(raised.error)


@script.call
def huggingface_chat() -> None:
    """A chat."""
    check_chat(NATIVE)


@script.call
def huggingface_stream() -> None:
    """A stream."""
    check_stream(NATIVE)


@script.call
def huggingface_tools() -> None:
    """Tools."""
    check_tools(NATIVE)


@script.call
def huggingface_tools_stream() -> None:
    """Streamed tools."""
    check_tools_stream(NATIVE)


@script.call
def huggingface_format() -> None:
    """A JSON schema."""
    assert is_city(
        litellm.completion(**NATIVE, **(GREEDY | {"max_tokens": 60}), response_format=FORMAT).choices[0].message.content
    )


@script.call
def huggingface_error_of_key() -> None:
    """A wrong key."""
    with raises(litellm.AuthenticationError):
        litellm.completion(**(NATIVE | {"api_key": "wrong"}), **GREEDY)


@script.call
async def async_chat() -> None:
    """An async chat of either provider."""
    for provider in (OPENAI, NATIVE):
        answer: Any = await litellm.acompletion(**provider, **GREEDY)
        assert answer.choices[0].message.content == ANSWER


@script.call
async def async_stream() -> None:
    """An async stream of either provider."""
    for provider in (OPENAI, NATIVE):
        stream: Any = await litellm.acompletion(**provider, **GREEDY, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == ANSWER


script.run()
