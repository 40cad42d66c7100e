"""pydantic-ai: agents on OpenAI's Responses API and on Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from calls import ANSWER, QUESTION, Script
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

script = Script()
GREEDY: Any = {"temperature": 0.0, "max_tokens": 200}


class Person(BaseModel):
    """A person."""

    kind: Literal["human", "robot"]
    adult: bool


def models() -> Iterator[Any]:
    """The demo model behind each API; it lives as long as one event loop. The client knows by a model's name what Anthropic offers."""
    yield OpenAIResponsesModel("tgi", provider=OpenAIProvider(base_url=f"{script.url}/v1", api_key=script.key))
    yield AnthropicModel("claude-sonnet-4-5", provider=AnthropicProvider(base_url=script.url, api_key=script.key))


@script.call
def text() -> None:
    """A plain answer with its usage."""
    for model in models():
        result = Agent(model, model_settings=GREEDY).run_sync(QUESTION)
        assert result.output == ANSWER and result.usage.output_tokens > 3


@script.call
def native() -> None:
    """A native output."""
    for model in models():
        assert isinstance(Agent(model, model_settings=GREEDY, output_type=NativeOutput(Person)).run_sync(QUESTION).output, Person)


@script.call
def by_tool() -> None:
    """An output by tool: the model must call the tool that takes it."""
    for model in models():
        assert isinstance(Agent(model, model_settings=GREEDY, output_type=ToolOutput(Person)).run_sync(QUESTION).output, Person)


@script.call
async def streamed() -> None:
    """A streamed answer adds up."""
    for model in models():
        async with Agent(model, model_settings=GREEDY).run_stream(QUESTION) as result:
            pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        assert len(pieces) > 1 and "".join(pieces) == ANSWER


@script.call
def history() -> None:
    """A second turn knows the first, with a call of a tool and its result."""
    for model in models():
        first = Agent(model, model_settings=GREEDY, output_type=ToolOutput(Person)).run_sync("Hello!")
        second = Agent(model, model_settings=GREEDY).run_sync(QUESTION, message_history=first.all_messages())
        assert second.output


script.run()
