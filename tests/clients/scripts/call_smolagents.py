"""smolagents: its models and a tool-calling agent."""

from __future__ import annotations

from typing import Any, ClassVar

from calls import ANSWER, QUESTION, Script
from smolagents import OpenAIServerModel, Tool, ToolCallingAgent

script = Script()
ASKED: Any = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]


class Weather(Tool):  # type: ignore[misc]
    """A tool with one argument."""

    name = "get_weather"
    description = "The weather of a city."
    inputs: ClassVar[Any] = {"city": {"type": "string", "description": "A city.", "enum": ["Paris", "Rome"]}}
    output_type = "string"

    def forward(self, city: str) -> str:
        """The weather."""
        return f"sunny in {city}"


def make(**more: Any) -> Any:
    """A greedy model."""
    settings = {"temperature": 0, "max_tokens": 60} | more
    return OpenAIServerModel("tgi", api_base=f"{script.url}/v1", api_key=script.key, **settings)


@script.call
def generate() -> None:
    """A message."""
    assert make().generate(ASKED).content == ANSWER


@script.call
def stream() -> None:
    """A streamed message adds up."""
    assert "".join(delta.content or "" for delta in make().generate_stream(ASKED)) == ANSWER


@script.call
def stops() -> None:
    """A stop string ends the message before it."""
    assert "Paris" not in make().generate(ASKED, stop_sequences=["Paris"]).content


@script.call
def required() -> None:
    """A call that must be made is."""
    (called, *_) = make().generate(ASKED, tools_to_call_from=[Weather()]).tool_calls
    assert called.function.name == "get_weather"


@script.call
def response_format() -> None:
    """A response format is kept."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    given = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    assert make().generate(ASKED, response_format=given).content.replace(" ", "") in {'{"ok":true}', '{"ok":false}'}


@script.call
def agent() -> None:
    """An agent takes its steps, each a call, and ends."""
    made = ToolCallingAgent(
        tools=[Weather()], model=make(max_tokens=200), max_steps=2, verbosity_level=0, instructions="Be brief."
    )
    made.prompt_templates["system_prompt"] = "You call tools."
    assert made.run(QUESTION) is not None and len(made.memory.steps) >= 2


script.run()
