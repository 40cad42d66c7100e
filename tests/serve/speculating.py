"""Requests of all kinds, whose answers must not depend on speculation, and how to ask for them at once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

PROMPTS = (
    "The capital of France is",
    "a b c a b c a b c a b",
    '{"name": "a", "age": 3}, {"name": "b", "age": 4}, {"na',
    "Once upon a time, once upon a time",
    "Q",
)
AT_ONCE = 8
KEYS = ("first_long_property_name", "second_quite_long_property_name", "third_property_with_a_long_name")
SCHEMA = {
    "type": "object",
    "properties": {key: {"type": "integer", "minimum": 0, "maximum": 99} for key in KEYS},
    "required": list(KEYS),
    "additionalProperties": False,
}
"""An object whose keys are much longer than its values."""
TOOL = {"type": "function", "function": {"name": "book_a_table", "parameters": SCHEMA}}
PREDICTION = {"type": "content", "content": "The capital of France is Paris.\nA rainbow has seven colours."}
"""Two answers of the demo model, of which the first one is at its beginning."""

GENERATE: tuple[dict[str, Any], ...] = (
    {},
    {"do_sample": True, "temperature": 0.7, "top_p": 0.95, "seed": 1},
    {"repetition_penalty": 1.1, "frequency_penalty": 0.3},
    {"do_sample": True, "temperature": 0.5, "typical_p": 0.9, "seed": 2},
    {"grammar": {"type": "regex", "value": "([a-d]{2,4} ){3,9}end"}},
    {"stop": ["e ", "zz"]},
    {"top_n_tokens": 3},
    {"do_sample": True, "temperature": 0.6, "top_k": 30, "seed": 3, "repetition_penalty": 1.05},
    {"watermark": True, "repetition_penalty": 1.05},
    {"watermark": True, "do_sample": True, "temperature": 0.7, "seed": 4},
    {"grammar": {"type": "json", "value": SCHEMA}, "do_sample": True, "temperature": 1.2, "seed": 4},
)
"""Parameters of /generate that meet in the same steps."""
CHAT: tuple[dict[str, Any], ...] = (
    {"temperature": 0, "prediction": PREDICTION},
    {"temperature": 0.8, "seed": 5, "n": 2, "prediction": PREDICTION, "logprobs": True, "top_logprobs": 2},
    {"temperature": 0, "tools": [TOOL], "tool_choice": "required", "max_tokens": 120},
    {"temperature": 1.1, "seed": 6, "response_format": {"type": "json_object", "value": SCHEMA}, "max_tokens": 90},
    {"temperature": 0, "presence_penalty": 0.5, "logit_bias": {"40": 3}, "min_tokens": 20, "prediction": PREDICTION},
)
"""Fields of chat completions that meet them there."""
FORMS = len(GENERATE) + len(CHAT)


@dataclass(frozen=True, slots=True)
class Asked:
    """Request number `index`: its path, body and headers."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]


def asked(index: int) -> Asked:
    """Each form comes as a stream and not, and some have a salt. Prompts come again, so that earlier answers are of use."""
    form, streams = index % FORMS, bool((index + index // FORMS) % 2)
    prompt, headers = f"{PROMPTS[index % len(PROMPTS)]} {index % 2}", {"x-cache-salt": "b"} if index % 3 else {}
    if form < len(GENERATE):
        parameters = {"max_new_tokens": 10 + 13 * index % 80, "details": True, **GENERATE[form]}
        return Asked("/generate_stream" if streams else "/generate", {"inputs": prompt, "parameters": parameters}, headers)
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 40, "stream": streams, **CHAT[form - len(GENERATE)]}
    return Asked("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}, headers)


def comparable(text: str) -> str:
    """A body without what differs by nature: comments of a stream, ids, times, and the use of predictions. Choices of a stream interleave
    as they please."""
    text = text.replace(":\n\n", "")
    if '"chat.completion' not in text:
        return text
    events = [json.loads(line.removeprefix("data:")) for line in text.splitlines() if line not in ("", "data: [DONE]")]
    choices: dict[int, list[Any]] = {}
    for event in events:
        for choice in event["choices"]:
            for call in choice["delta" if "delta" in choice else "message"].get("tool_calls") or ():
                call.pop("id", None)
            choices.setdefault(choice["index"], []).append(choice)
    usage = events[-1]["usage"]
    usage.pop("completion_tokens_details", None)
    usage.pop("prompt_tokens_details")
    return json.dumps([sorted(choices.items()), usage])


async def answer(client: httpx.AsyncClient, index: int) -> str:
    """The body of an answer, or of its stream."""
    one = asked(index)
    response = await client.post(one.path, json=one.body, headers=one.headers)
    assert response.status_code == 200, response.text
    return comparable(response.text)


async def leave(client: httpx.AsyncClient, index: int) -> None:
    """Ask for a stream and go away after some of its lines."""
    one = asked(index)
    path = one.path.replace("/generate", "/generate_stream") if one.path == "/generate" else one.path
    async with client.stream("POST", path, json={**one.body, "stream": True}, headers=one.headers) as response:
        lines = 0
        async for _ in response.aiter_lines():
            lines += 1
            if lines > index % 30:
                return


async def answers(url: str, indices: range, leaving: bool = False, seen: Callable[[], None] = lambda: None) -> list[str]:
    """All these answers; with `leaving`, to clients among whom others come and go. `seen` is called for each answer."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(index: int) -> str:
        async with turns:
            body = await answer(client, index)
            seen()
            return body

    async def other(index: int) -> None:
        async with turns:
            await leave(client, index)

    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        others = [asyncio.create_task(other(index)) for index in indices[::5] if leaving]
        found = list(await asyncio.gather(*map(one, indices)))
        await asyncio.gather(*others)
        return found


def series(metrics: str, name: str) -> Iterator[tuple[str, float]]:
    """The labels and values of a metric."""
    for labels, value in re.findall(rf"^{name}(\{{.*\}})? (\S+)$", metrics, re.MULTILINE):
        yield labels, float(value)


def accepted(metrics: str) -> dict[str, float]:
    """Drafts that were accepted, by their source."""
    found: dict[str, float] = {}
    for labels, value in series(metrics, "tgi_spec_decode_accepted_tokens"):
        source = labels.split('source="')[1].split('"')[0]
        found[source] = found.get(source, 0.0) + value
    return found
