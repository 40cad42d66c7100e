"""llama-index: OpenAILike on completions, chats, streams, tools and structured output."""

from __future__ import annotations

from typing import Any, Literal

from calls import ANSWER, PROMPT, QUESTION, Script
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

script = Script()


class Person(BaseModel):
    """A person."""

    kind: Literal["human", "robot"]
    adult: bool


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


WEATHER = FunctionTool.from_defaults(get_weather)


def make(**more: Any) -> Any:
    """A model that chats and calls functions."""
    settings: dict[str, Any] = {"is_chat_model": True, "is_function_calling_model": True, "temperature": 0.0, "max_tokens": 60}
    return OpenAILike(model="tgi", api_base=f"{script.url}/v1", api_key=script.key, max_retries=0, **(settings | more))


@script.call
def complete() -> None:
    """A completion of a text."""
    assert make(is_chat_model=False).complete(PROMPT).text.strip().startswith("Paris")


@script.call
def stream_complete() -> None:
    """A streamed completion grows."""
    pieces = list(make(is_chat_model=False, max_tokens=12).stream_complete(PROMPT))
    assert len(pieces) > 1 and pieces[-1].text.strip().startswith("Paris")


@script.call
def chat() -> None:
    """A chat."""
    assert make().chat([ChatMessage(role="user", content=QUESTION)]).message.content == ANSWER


@script.call
def stream_chat() -> None:
    """A streamed chat adds up."""
    pieces = list(make().stream_chat([ChatMessage(role="user", content=QUESTION)]))
    assert "".join(piece.delta or "" for piece in pieces) == ANSWER


@script.call
async def achat() -> None:
    """An async chat."""
    assert (await make().achat([ChatMessage(role="user", content=QUESTION)])).message.content == ANSWER


@script.call
def tools_required() -> None:
    """A call that must be made is."""
    model = make()
    answer = model.chat_with_tools([WEATHER], user_msg=QUESTION, tool_required=True)
    (called, *_) = model.get_tool_calls_from_response(answer)
    assert called.tool_name == "get_weather" and isinstance(called.tool_kwargs["city"], str)


@script.call
def structured() -> None:
    """A pydantic object, by a tool."""
    model = make().as_structured_llm(Person)
    assert isinstance(model.chat([ChatMessage(role="user", content=QUESTION)]).raw, Person)


@script.call
def structured_native() -> None:
    """A pydantic object, by a response format."""
    model = make(should_use_structured_outputs=True).as_structured_llm(Person)
    assert isinstance(model.chat([ChatMessage(role="user", content=QUESTION)]).raw, Person)


script.run()
