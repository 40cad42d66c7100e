"""instructor: pydantic objects by tools, by JSON, by JSON schema; lists, optional fields, streams."""

from __future__ import annotations

from typing import Any, Literal

import instructor
import openai
from calls import QUESTION, Script
from pydantic import BaseModel

script = Script()
ASKED: Any = [{"role": "user", "content": QUESTION}]
GREEDY: Any = {"model": "tgi", "messages": ASKED, "temperature": 0, "max_tokens": 120, "max_retries": 0}


class Person(BaseModel):
    """A person."""

    kind: Literal["human", "robot"]
    adult: bool
    boss: Literal["yes", "no"] | None = None


def client(mode: Any) -> Any:
    """A client in a mode."""
    return instructor.from_openai(openai.OpenAI(base_url=f"{script.url}/v1", api_key=script.key, max_retries=0), mode=mode)


@script.call
def by_tools() -> None:
    """A forced call of a function."""
    assert isinstance(client(instructor.Mode.TOOLS).chat.completions.create(response_model=Person, **GREEDY), Person)


@script.call
def by_tools_strict() -> None:
    """A forced call of a strict function."""
    assert isinstance(client(instructor.Mode.TOOLS_STRICT).chat.completions.create(response_model=Person, **GREEDY), Person)


@script.call
def by_json_schema() -> None:
    """A response format with the schema."""
    assert isinstance(client(instructor.Mode.JSON_SCHEMA).chat.completions.create(response_model=Person, **GREEDY), Person)


@script.call
def with_completion() -> None:
    """An object together with the completion that it came in."""
    made, completion = client(instructor.Mode.TOOLS).chat.completions.create_with_completion(response_model=Person, **GREEDY)
    assert isinstance(made, Person) and completion.usage.completion_tokens > 3


@script.call
def partial() -> None:
    """A streamed object grows until it is complete."""
    *_, last = client(instructor.Mode.JSON_SCHEMA).chat.completions.create_partial(response_model=Person, **GREEDY)
    assert last.kind in {"human", "robot"} and isinstance(last.adult, bool)


@script.call
async def asynchronous() -> None:
    """The async client."""
    asynchronous = openai.AsyncOpenAI(base_url=f"{script.url}/v1", api_key=script.key, max_retries=0)
    made = await instructor.from_openai(asynchronous, mode=instructor.Mode.TOOLS).chat.completions.create(
        response_model=Person, **GREEDY
    )
    assert isinstance(made, Person)


script.run()
