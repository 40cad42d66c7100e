"""langchain-huggingface: HuggingFaceEndpoint on the native routes, ChatHuggingFace on chat, tools and formats."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from calls import ANSWER, PROMPT, QUESTION, Script
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_huggingface import ChatHuggingFace, HuggingFaceEndpoint
from pydantic import BaseModel, Field

script = Script()


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Tells the weather of a city."""
    return f"sunny in {city}"


class Person(BaseModel):
    """A person."""

    kind: Literal["human", "robot"] = Field(description="What the person is.")
    adult: bool


def make_endpoint(**more: Any) -> Any:
    """An endpoint; it sends a token to Hugging Face's own addresses alone, so the key is a header."""
    key = {"headers": {"Authorization": f"Bearer {script.key}"}}
    return HuggingFaceEndpoint(endpoint_url=script.url, max_new_tokens=20, server_kwargs=key, **more)


def make_chat(**more: Any) -> Any:
    """A chat model that answers greedily."""
    endpoint = make_endpoint()
    return ChatHuggingFace(llm=endpoint, temperature=0, **({"max_tokens": 60} | more))


@script.call
def endpoint_invoke() -> None:
    """A text; the endpoint sends defaults of its own for everything."""
    assert make_endpoint().invoke(PROMPT).strip().startswith("Paris")


@script.call
def endpoint_sampled() -> None:
    """A sampled text with a seed repeats."""
    endpoint = make_endpoint(do_sample=True, seed=4, temperature=0.9, top_k=30, repetition_penalty=1.1)
    assert endpoint.invoke(PROMPT) == endpoint.invoke(PROMPT)


@script.call
def endpoint_stop() -> None:
    """A stop string is cut from the end."""
    assert make_endpoint(stop_sequences=["Paris"]).invoke(PROMPT).strip() == ""


@script.call
def endpoint_batch() -> None:
    """Several texts at once."""
    first, second = make_endpoint().batch([PROMPT, "The capital of Japan is"])
    assert "Paris" in first and "Tokyo" in second


@script.call
def endpoint_stream() -> None:
    """A streamed text, in pieces."""
    pieces = list(make_endpoint().stream(PROMPT))
    assert len(pieces) > 1 and "".join(pieces).strip().startswith("Paris")


@script.call
def endpoint_streaming() -> None:
    """`streaming=True`, where the pieces are joined."""
    assert make_endpoint(streaming=True).invoke(PROMPT).strip().startswith("Paris")


@script.call
async def endpoint_ainvoke() -> None:
    """Four async texts at once."""
    endpoint = make_endpoint()
    texts = await asyncio.gather(*(endpoint.ainvoke(PROMPT) for _ in range(4)))
    assert all(text.strip().startswith("Paris") for text in texts)


@script.call
async def endpoint_astream() -> None:
    """An async stream."""
    endpoint = make_endpoint()
    assert "".join([piece async for piece in endpoint.astream(PROMPT)]).strip().startswith("Paris")


@script.call
def chat_invoke() -> None:
    """A chat with its usage and reason."""
    answer = make_chat().invoke([SystemMessage("You are a helpful assistant."), HumanMessage(QUESTION)])
    assert answer.content == ANSWER and answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] > 3


@script.call
def chat_history() -> None:
    """Turns of a conversation."""
    turns = [HumanMessage("Hello!"), AIMessage("Hello! How can I help you?"), HumanMessage(QUESTION)]
    assert "Paris" in make_chat().invoke(turns).content


@script.call
def chat_stream() -> None:
    """A streamed chat; its chunks add up to one message."""
    chunks = list(make_chat().stream(QUESTION))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.content == ANSWER and len(chunks) > 3


@script.call
def chat_chain() -> None:
    """A chain of template, model and parser."""
    chain = ChatPromptTemplate.from_messages([("user", "What is the capital of {country}?")]) | make_chat() | StrOutputParser()
    assert chain.invoke({"country": "France"}) == ANSWER


@script.call
async def chat_ainvoke() -> None:
    """An async chat."""
    chat = make_chat()
    assert (await chat.ainvoke(QUESTION)).content == ANSWER


@script.call
async def chat_astream() -> None:
    """An async stream of a chat."""
    chat = make_chat()
    assert "".join([chunk.content async for chunk in chat.astream(QUESTION)]) == ANSWER


@script.call
def tools_required() -> None:
    """A bound tool that must be called is."""
    answer = make_chat().bind_tools([get_weather], tool_choice="required").invoke(QUESTION)
    called = answer.tool_calls[0]
    assert called["name"] == "get_weather" and called["args"]["city"] in {"Paris", "Rome"} and called["id"]


@script.call
def tools_named() -> None:
    """A tool by its name."""
    answer = make_chat().bind_tools([get_weather], tool_choice="get_weather").invoke(QUESTION)
    assert [called["name"] for called in answer.tool_calls] == ["get_weather"]


@script.call
def tools_auto() -> None:
    """A model that may call a tool may answer."""
    answer = make_chat().bind_tools([get_weather], tool_choice="auto").invoke(QUESTION)
    assert answer.content or answer.tool_calls


@script.call
def tools_loop() -> None:
    """A call, its result, and an answer: the loop of an agent ends."""
    turns: list[Any] = [HumanMessage(QUESTION)]
    called = make_chat().bind_tools([get_weather], tool_choice="get_weather").invoke(turns)
    turns.append(called)
    turns += [ToolMessage(get_weather.invoke(each["args"]), tool_call_id=each["id"]) for each in called.tool_calls]
    answer = make_chat().bind_tools([get_weather], tool_choice="none").invoke(turns)
    assert not answer.tool_calls and answer.response_metadata["finish_reason"] in {"stop", "length"}


@script.call
def tools_stream() -> None:
    """Streamed deltas add up to a call."""
    chunks = list(make_chat().bind_tools([get_weather], tool_choice="get_weather").stream(QUESTION))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert [called["name"] for called in whole.tool_calls] == ["get_weather"] and whole.tool_calls[0]["args"]["city"]


@script.call
def structured_by_schema() -> None:
    """with_structured_output by a JSON schema gives an object that fits."""
    chat = make_chat().with_structured_output(Person.model_json_schema(), method="json_schema")
    assert Person.model_validate(chat.invoke(QUESTION))


@script.call
def structured_by_tool() -> None:
    """with_structured_output by a function call."""
    schema = {"title": "Person", "description": "A person."} | Person.model_json_schema()
    assert Person.model_validate(make_chat().with_structured_output(schema, method="function_calling").invoke(QUESTION))


script.run()
