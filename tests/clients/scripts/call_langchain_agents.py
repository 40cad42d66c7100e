"""langchain: agents, and ChatOpenAI as they use it."""

from __future__ import annotations

from typing import Any, Literal

from calls import ANSWER, QUESTION, Script
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

script = Script()
ASKED: Any = {"messages": [{"role": "user", "content": QUESTION}]}


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Tells the weather of a city."""
    return f"sunny in {city}"


class Person(BaseModel):
    """A person."""

    kind: Literal["human", "robot"]
    adult: bool


def make(**more: Any) -> Any:
    """A greedy model."""
    settings: dict[str, Any] = {"temperature": 0, "max_tokens": 100, "max_retries": 0}
    return ChatOpenAI(model="tgi", base_url=f"{script.url}/v1", api_key=script.key, **(settings | more))


@script.call
def plain() -> None:
    """An agent without tools answers."""
    assert create_agent(make(), tools=[]).invoke(ASKED)["messages"][-1].content == ANSWER


@script.call
def with_tools() -> None:
    """An agent with tools answers, or calls one."""
    made = create_agent(make(), tools=[get_weather], system_prompt="You are a helpful assistant.")
    assert len(made.invoke(ASKED, {"recursion_limit": 6})["messages"]) >= 2


@script.call
def by_provider() -> None:
    """A structured response by a response format."""
    made = create_agent(make(), tools=[], response_format=ProviderStrategy(Person))
    assert isinstance(made.invoke(ASKED, {"recursion_limit": 6})["structured_response"], Person)


@script.call
def format_beside_tools() -> None:
    """What such an agent sends if it has tools: they come with a response format, and the model chooses."""
    answer = make().bind_tools([get_weather], response_format=Person, strict=True).invoke(QUESTION)
    assert answer.tool_calls or isinstance(answer.additional_kwargs["parsed"], Person)


@script.call
def by_tool() -> None:
    """A structured response by a tool."""
    made = create_agent(make(), tools=[], response_format=ToolStrategy(Person))
    assert isinstance(made.invoke(ASKED, {"recursion_limit": 6})["structured_response"], Person)


@script.call
def streamed() -> None:
    """The steps of an agent, as they come."""
    steps = list(create_agent(make(), tools=[]).stream(ASKED, stream_mode="updates"))
    assert steps and "model" in steps[-1]


@script.call
def structured_by_schema() -> None:
    """with_structured_output by a JSON schema."""
    assert isinstance(make().with_structured_output(Person, method="json_schema").invoke(QUESTION), Person)


@script.call
def structured_by_function() -> None:
    """with_structured_output by a function."""
    assert isinstance(make().with_structured_output(Person, method="function_calling").invoke(QUESTION), Person)


@script.call
async def async_stream() -> None:
    """An async stream of text."""
    assert "".join([str(chunk.content) async for chunk in make().astream(QUESTION)]) == ANSWER


script.run()
