"""text-generation 0.7, TGI's own client: Client and AsyncClient, and how they name errors.

Its chat streams are left out: they ask each chunk for a field `tool_calls`, which chunks of text have not in TGI either.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from calls import ANSWER, PROMPT, QUESTION, Script, raises
from text_generation import AsyncClient, Client
from text_generation.errors import OverloadedError, UnknownError, ValidationError
from text_generation.types import FinishReason, Grammar, GrammarType, Message, Tool

script = Script()
FIVE = ["1", "2", "3", "4", "5"]
"""One stop string more than the server takes."""
AUTHORIZED = {"Authorization": f"Bearer {script.key}"}
client = Client(script.url, headers=AUTHORIZED, timeout=60)
ASKED = [Message(role="user", content=QUESTION)]
SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = Tool(type="function", function={"name": "visit", "description": "Visits a city.", "parameters": SCHEMA})


def make_client() -> AsyncClient:
    """One per event loop."""
    return AsyncClient(script.url, headers=AUTHORIZED, timeout=60)


@script.call
def generate() -> None:
    """A text with its details."""
    response = client.generate(PROMPT, max_new_tokens=5)
    details = response.details
    assert response.generated_text.startswith(" Paris") and details.generated_tokens == len(details.tokens)
    assert details.finish_reason in {FinishReason.Length, FinishReason.EndOfSequenceToken} and details.seed is None
    assert details.prefill == []


@script.call
def generate_prompt_details() -> None:
    """The tokens of the prompt; its first has no logprob."""
    prefill = client.generate(PROMPT, max_new_tokens=1, decoder_input_details=True).details.prefill
    assert prefill[0].logprob is None and all(token.logprob is not None for token in prefill[1:])
    assert "".join(token.text for token in prefill).endswith(PROMPT)


@script.call
def generate_sampled() -> None:
    """Every sampling parameter; a seed repeats the text and is told."""
    sampling: Any = {"do_sample": True, "temperature": 0.9, "top_k": 20, "top_p": 0.9, "typical_p": 0.95, "seed": 11}
    more: Any = {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "truncate": 20, "watermark": False}
    first, second = (client.generate(PROMPT, max_new_tokens=9, **sampling, **more) for _ in range(2))
    assert first.generated_text == second.generated_text and first.details.seed == 11


@script.call
def generate_best_of() -> None:
    """best_of with its other sequences."""
    others = client.generate(PROMPT, do_sample=True, best_of=3, max_new_tokens=4).details.best_of_sequences
    assert others is not None and len(others) == 2 and all(other.tokens and other.finish_reason for other in others)


@script.call
def generate_stop() -> None:
    """A stop string."""
    response = client.generate(PROMPT, stop_sequences=["Paris"])
    assert response.generated_text == " Paris" and response.details.finish_reason is FinishReason.StopSequence


@script.call
def generate_full_text() -> None:
    """The prompt before the text."""
    assert client.generate(PROMPT, max_new_tokens=3, return_full_text=True).generated_text.startswith(f"{PROMPT} Paris")


@script.call
def generate_top_tokens() -> None:
    """The rivals of each token."""
    details = client.generate(PROMPT, max_new_tokens=3, top_n_tokens=2).details
    assert details.top_tokens is not None and [len(rivals) >= 2 for rivals in details.top_tokens] == [True] * len(details.tokens)


@script.call
def generate_json() -> None:
    """A JSON grammar."""
    grammar = Grammar(type=GrammarType.Json, value=SCHEMA)
    assert json.loads(client.generate("A city: ", max_new_tokens=60, grammar=grammar).generated_text)["city"] in {"Paris", "Rome"}


@script.call
def generate_regex() -> None:
    """A regular expression."""
    grammar = Grammar(type=GrammarType.Regex, value="[0-9]{3}")
    text = client.generate("A number: ", max_new_tokens=20, grammar=grammar).generated_text
    assert len(text) == 3 and text.isdigit()


@script.call
def generate_stream() -> None:
    """A stream of tokens; the last has text and details."""
    responses = list(client.generate_stream(PROMPT, max_new_tokens=6))
    last = responses[-1]
    assert all(response.generated_text is None and response.details is None for response in responses[:-1])
    assert last.details is not None and last.details.generated_tokens == len(responses)
    assert last.generated_text == client.generate(PROMPT, max_new_tokens=6).generated_text
    assert responses[0].token.text == " Paris" and (responses[0].token.logprob or 0) <= 0


@script.call
def generate_stream_top_tokens() -> None:
    """A stream with rivals and a seed."""
    responses = list(client.generate_stream(PROMPT, max_new_tokens=3, top_n_tokens=2, do_sample=True, seed=5))
    assert all(len(response.top_tokens or []) >= 2 for response in responses)
    assert responses[-1].details is not None and responses[-1].details.seed == 5


@script.call
def chat() -> None:
    """A chat, through the client's own models."""
    answer = client.chat(ASKED, temperature=0.01, max_tokens=40)
    assert answer.choices[0].message.content == ANSWER and answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion" and answer.usage["completion_tokens"] > 0


@script.call
def chat_parameters() -> None:
    """What else chat takes, with the list that the client has for a bias left empty."""
    more: Any = {"repetition_penalty": 1.0, "frequency_penalty": 0.1, "presence_penalty": 0.1, "n": 1, "logit_bias": []}
    answer = client.chat(ASKED, max_tokens=5, seed=1, top_p=0.9, logprobs=True, top_logprobs=2, **more)
    assert len(answer.choices[0].logprobs["content"]) <= 5


@script.call
def chat_tools() -> None:
    """A required tool."""
    answer = client.chat(ASKED, tools=[TOOL], tool_choice="required", max_tokens=90)
    (called, *_) = answer.choices[0].message.tool_calls or []
    assert called["function"]["name"] == "visit" and json.loads(called["function"]["arguments"])["city"] in {"Paris", "Rome"}


@script.call
def error_of_validation() -> None:
    """The server's words arrive as ValidationError."""
    with raises(ValidationError) as raised:
        client.generate(PROMPT, stop_sequences=FIVE)
    assert "Input validation error: `stop` supports up to 4" in str(raised.error)


@script.call
def error_of_validation_streamed() -> None:
    """The same before or inside a stream."""
    with raises(ValidationError):
        list(client.generate_stream(PROMPT, stop_sequences=FIVE))


@script.call
def error_of_grammar() -> None:
    """A grammar that does not compile."""
    with raises(ValidationError) as raised:
        client.generate(PROMPT, grammar=Grammar(type=GrammarType.Regex, value="("))
    assert "grammar is not valid" in str(raised.error)


@script.call
def error_of_load() -> None:
    """More than the server takes at once is an OverloadedError."""
    with raises(OverloadedError) as raised:
        client.generate(PROMPT, do_sample=True, best_of=17)
    assert "Model is overloaded" in str(raised.error)


@script.call
def error_of_chat() -> None:
    """A chat error keeps its type."""
    with raises(ValidationError) as raised:
        client.chat(ASKED, top_p=3.0)
    assert "top_p" in str(raised.error)


@script.call
def error_of_tools() -> None:
    """A type that the client does not know is an UnknownError."""
    with raises(UnknownError) as raised:
        client.chat(ASKED, tools=[TOOL], tool_choice="another")
    assert "another" in str(raised.error)


@script.call
async def async_generate() -> None:
    """Four texts at once."""
    one = make_client()
    responses = await asyncio.gather(*(one.generate(PROMPT, max_new_tokens=5) for _ in range(4)))
    assert all(response.generated_text.startswith(" Paris") for response in responses)


@script.call
async def async_generate_stream() -> None:
    """A stream of tokens."""
    responses = [response async for response in make_client().generate_stream(PROMPT, max_new_tokens=5)]
    assert responses[-1].details is not None and responses[-1].details.generated_tokens == len(responses)


@script.call
async def async_chat() -> None:
    """A chat."""
    answer = await make_client().chat(ASKED, temperature=0.01, max_tokens=40)
    assert answer.choices[0].message.content == ANSWER


@script.call
async def async_error_of_validation() -> None:
    """The same classes of errors."""
    with raises(ValidationError):
        await make_client().generate(PROMPT, stop_sequences=FIVE)


@script.call
async def async_error_streamed() -> None:
    """And in a stream."""
    with raises(ValidationError):
        async for _ in make_client().generate_stream(PROMPT, stop_sequences=FIVE):
            pass


@script.call
async def async_error_of_load() -> None:
    """And for load."""
    with raises(OverloadedError):
        await make_client().generate(PROMPT, do_sample=True, best_of=17)


script.run()
