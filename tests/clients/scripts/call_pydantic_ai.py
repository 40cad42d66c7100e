"""pydantic-ai: agents with text, outputs by tool, native and prompted, tools, and streams."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from calls import ANSWER, QUESTION, Script
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

script = Script()
GREEDY: Any = {"temperature": 0.0, "max_tokens": 200}


class Colour(Enum):
    """A colour."""

    RED = "red"
    BLUE = "blue"


class Person(BaseModel):
    """A person. The set and the dictionary become `uniqueItems` and `propertyNames`."""

    kind: Literal["human", "robot"]
    adult: bool
    likes: set[Colour] = Field(max_length=2)
    marks: dict[Colour, bool]


def agent(**more: Any) -> Any:
    """An agent on the demo model; it lives as long as one event loop."""
    model = OpenAIChatModel("tgi", provider=OpenAIProvider(base_url=f"{script.url}/v1", api_key=script.key))
    return Agent(model, model_settings=GREEDY, **more)


@script.call
def text() -> None:
    """A plain answer with its usage."""
    result = agent().run_sync(QUESTION)
    assert result.output == ANSWER and result.usage.output_tokens > 3


@script.call
def instructions() -> None:
    """Instructions come before the question."""
    assert "Paris" in agent(instructions="You are a helpful assistant.").run_sync(QUESTION).output


@script.call
def native() -> None:
    """A native output: a response format of the model's schema."""
    assert isinstance(agent(output_type=NativeOutput(Person)).run_sync(QUESTION).output, Person)


@script.call
def by_tool() -> None:
    """An output by tool: the model must call the tool that takes it."""
    assert isinstance(agent(output_type=ToolOutput(Person)).run_sync(QUESTION).output, Person)


@script.call
def native_beside_tools() -> None:
    """A native output of an agent that has a tool, too, and may call it in its first step."""
    made = agent(output_type=NativeOutput(Person))

    async def first(context: Any, definition: Any) -> Any:
        return definition if context.run_step <= 1 else None

    @made.tool_plain(prepare=first)
    def get_weather(city: Literal["Paris", "Rome"]) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    assert isinstance(made.run_sync(QUESTION).output, Person)


@script.call
def choice_of_outputs() -> None:
    """One of several native outputs."""
    assert isinstance(agent(output_type=NativeOutput([Person, Colour])).run_sync(QUESTION).output, Person | Colour)


@script.call
async def streamed() -> None:
    """A streamed answer adds up."""
    async with agent().run_stream(QUESTION) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 1 and "".join(pieces) == ANSWER


@script.call
async def streamed_native() -> None:
    """A streamed native output is validated at its end."""
    async with agent(output_type=NativeOutput(Person)).run_stream(QUESTION) as result:
        assert isinstance(await result.get_output(), Person)


@script.call
def history() -> None:
    """A second turn knows the first."""
    made = agent()
    first = made.run_sync("Hello!")
    assert "Paris" in made.run_sync(QUESTION, message_history=first.all_messages()).output


script.run()
