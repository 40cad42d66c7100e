"""huggingface_hub, 0.36 and later: InferenceClient and AsyncInferenceClient on the native routes and on chat."""

from __future__ import annotations

import asyncio
import json
import warnings
from typing import Any

from calls import ANSWER, PROMPT, QUESTION, Script, raises
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError, OverloadedError, ValidationError

script = Script()
client: Any = InferenceClient(base_url=script.url, api_key=script.key, timeout=60)
ASKED: Any = [{"role": "user", "content": QUESTION}]
SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "visit", "description": "Visits a city.", "parameters": SCHEMA}}


def make_client() -> Any:
    """One per event loop."""
    return AsyncInferenceClient(base_url=script.url, api_key=script.key, timeout=60)


def complete(prompt: str = PROMPT, **more: Any) -> Any:
    """What follows the prompt. Without return_full_text the route `/` answers with the prompt before it."""
    return client.text_generation(prompt, return_full_text=False, **more)


@script.call
def text() -> None:
    """text_generation gives the text alone."""
    given = complete(max_new_tokens=5)
    assert isinstance(given, str) and given.startswith(" Paris")


@script.call
def text_from_the_address_alone() -> None:
    """The same with the address as the model, as for an endpoint."""
    plain: Any = InferenceClient(model=script.url, token=script.key, timeout=60)
    assert plain.text_generation(PROMPT, max_new_tokens=5, return_full_text=False).startswith(" Paris")


@script.call
def text_full() -> None:
    """On `/` the prompt comes before the text unless return_full_text is false, as in TGI."""
    for given in (None, True):
        assert client.text_generation(PROMPT, max_new_tokens=5, return_full_text=given).startswith(f"{PROMPT} Paris")


@script.call
def text_details() -> None:
    """details: why it ended, tokens with logprobs."""
    output = complete(max_new_tokens=5, details=True)
    details = output.details
    assert details.finish_reason in {"length", "eos_token"} and details.generated_tokens == len(details.tokens) <= 5
    assert "".join(token.text for token in details.tokens if not token.special) == output.generated_text
    assert all(token.logprob <= 0 for token in details.tokens)


@script.call
def text_prompt_details() -> None:
    """decoder_input_details: the tokens of the prompt, the first without a logprob."""
    prefill = complete(max_new_tokens=1, details=True, decoder_input_details=True).details.prefill
    assert "".join(token.text for token in prefill).endswith(PROMPT) and prefill[0].logprob is None
    assert all(token.logprob is not None for token in prefill[1:])


@script.call
def text_top_tokens() -> None:
    """top_n_tokens: the rivals of each token."""
    details = complete(max_new_tokens=3, details=True, top_n_tokens=2).details
    assert len(details.top_tokens) == len(details.tokens) and all(len(rivals) >= 2 for rivals in details.top_tokens)


@script.call
def text_sampled() -> None:
    """All sampling parameters are taken; the seed repeats the text and is told."""
    sampling: Any = {"do_sample": True, "temperature": 0.9, "top_k": 20, "top_p": 0.9, "typical_p": 0.95, "seed": 11}
    penalties: Any = {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "truncate": 20, "watermark": False}
    first, second = (complete(max_new_tokens=9, details=True, **sampling, **penalties) for _ in range(2))
    assert first.generated_text == second.generated_text and first.details.seed == 11


@script.call
def text_best_of() -> None:
    """best_of: the other candidates are among the details."""
    details = complete(max_new_tokens=4, do_sample=True, best_of=2, details=True).details
    assert len(details.best_of_sequences) == 1 and details.best_of_sequences[0].generated_text


@script.call
def text_stop() -> None:
    """A stop string stays in the text, as in TGI."""
    output = complete(max_new_tokens=9, stop=["Paris"], details=True)
    assert output.generated_text == " Paris" and output.details.finish_reason == "stop_sequence"


@script.call
def text_grammar_json() -> None:
    """A JSON grammar holds the text to its schema."""
    given = complete("A city: ", max_new_tokens=60, grammar={"type": "json", "value": SCHEMA})
    assert json.loads(given)["city"] in {"Paris", "Rome"}


@script.call
def text_grammar_regex() -> None:
    """A regular expression holds the text."""
    given = complete("A date: ", max_new_tokens=40, grammar={"type": "regex", "value": "[0-9]{4}-[01][0-9]"})
    assert len(given) == 7 and given[4] == "-" and given[:4].isdigit()


@script.call
def text_stream() -> None:
    """A stream of pieces joins to the same text."""
    pieces = list(complete("Once upon a time", max_new_tokens=8, stream=True))
    assert len(pieces) == 8 and all(isinstance(piece, str) for piece in pieces)
    assert "".join(pieces) == complete("Once upon a time", max_new_tokens=8)


@script.call
def text_stream_details() -> None:
    """A stream with details: tokens, and with the last of them the text and why it ended."""
    outputs = list(complete(max_new_tokens=8, stream=True, details=True))
    assert outputs[0].token.text == " Paris" and all(output.generated_text is None for output in outputs[:-1])
    last = outputs[-1]
    assert last.details.generated_tokens == len(outputs) and last.details.finish_reason in {"length", "eos_token"}
    assert last.generated_text.startswith(" Paris")


@script.call
def chat() -> None:
    """chat_completion: the answer, its reason and usage."""
    answer = client.chat_completion(ASKED, temperature=0, max_tokens=40)
    assert answer.choices[0].message.content == ANSWER and answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@script.call
def chat_in_openai_form() -> None:
    """The same as `client.chat.completions.create`."""
    answer = client.chat.completions.create(model="any/name", messages=ASKED, temperature=0, max_tokens=40)
    assert answer.choices[0].message.content == ANSWER


@script.call
def chat_below_v1() -> None:
    """An address that ends in /v1 is the same."""
    below: Any = InferenceClient(base_url=f"{script.url}/v1", api_key=script.key, timeout=60)
    assert below.chat_completion(ASKED, temperature=0, max_tokens=40).choices[0].message.content == ANSWER


@script.call
def chat_stream() -> None:
    """A streamed answer."""
    chunks = list(client.chat_completion(ASKED, temperature=0, max_tokens=40, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    assert chunks[-1].choices[0].finish_reason == "stop"


@script.call
def chat_stream_usage() -> None:
    """A streamed answer that ends with its usage."""
    options = {"include_usage": True}
    last = list(client.chat_completion(ASKED, max_tokens=3, stream=True, stream_options=options))[-1]
    assert last.usage.completion_tokens == 3


@script.call
def chat_logprobs() -> None:
    """Logprobs and their rivals."""
    answer = client.chat_completion(ASKED, temperature=0, max_tokens=3, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert len(content) == 3 and all(each.logprob <= 0 and len(each.top_logprobs) == 2 for each in content)


@script.call
def chat_parameters() -> None:
    """What else chat takes."""
    more: Any = {"frequency_penalty": 0.1, "presence_penalty": 0.1, "top_p": 0.9, "seed": 3, "stop": ["!"], "n": 1}
    first, second = (client.chat_completion(ASKED, max_tokens=20, **more).choices[0].message.content for _ in range(2))
    assert first and first == second


@script.call
def chat_format_of_tgi() -> None:
    """response_format in TGI's form."""
    answer = client.chat_completion(ASKED, max_tokens=60, response_format={"type": "json", "value": SCHEMA})
    assert json.loads(answer.choices[0].message.content)["city"] in {"Paris", "Rome"}


@script.call
def chat_format_of_openai() -> None:
    """response_format in OpenAI's form."""
    format_ = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    answer = client.chat_completion(ASKED, max_tokens=60, response_format=format_)
    assert json.loads(answer.choices[0].message.content)["city"] in {"Paris", "Rome"}


@script.call
def chat_tools() -> None:
    """A required tool is called with arguments that fit."""
    choice = client.chat_completion(ASKED, max_tokens=90, tools=[TOOL], tool_choice="required").choices[0]
    called = choice.message.tool_calls[0]
    assert called.id and called.function.name == "visit"
    assert json.loads(called.function.arguments)["city"] in {"Paris", "Rome"}


@script.call
def chat_tool_by_name() -> None:
    """A tool by its name."""
    named = {"function": {"name": "visit"}}
    called = client.chat_completion(ASKED, max_tokens=90, tools=[TOOL], tool_choice=named).choices[0].message.tool_calls[0]
    assert json.loads(called.function.arguments)["city"] in {"Paris", "Rome"}


@script.call
def chat_tool_by_prompt() -> None:
    """tool_prompt is taken; a model that is free to call may answer."""
    choice = client.chat_completion(ASKED, max_tokens=20, tools=[TOOL], tool_choice="auto", tool_prompt="You may call:").choices[
        0
    ]
    assert choice.message.content or choice.message.tool_calls


@script.call
def chat_tools_stream() -> None:
    """A streamed call."""
    chunks = client.chat_completion(ASKED, max_tokens=90, tools=[TOOL], tool_choice={"function": {"name": "visit"}}, stream=True)
    deltas = [called for chunk in chunks for called in chunk.choices[0].delta.tool_calls or []]
    assert deltas[0].function.name == "visit"
    assert json.loads("".join(called.function.arguments or "" for called in deltas))["city"] in {"Paris", "Rome"}


@script.call
def endpoint_info() -> None:
    """get_endpoint_info: what /info tells."""
    info = InferenceClient(script.url, provider="hf-inference", token=script.key).get_endpoint_info()
    assert info["model_id"] and info["max_total_tokens"] == 2048 and info["max_best_of"] > 0 and info["router"]


@script.call
def health() -> None:
    """health_check, where there still is one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert InferenceClient(script.url, provider="hf-inference").health_check() is True


@script.call
def error_of_validation() -> None:
    """A native error has its class and its text."""
    with raises(ValidationError) as raised:
        complete(temperature=-1.0)
    assert "`temperature` must be strictly positive" in str(raised.error)


@script.call
def error_of_validation_streamed() -> None:
    """The same inside a stream."""
    with raises(ValidationError):
        list(complete(stop=["1", "2", "3", "4", "5"], stream=True))


@script.call
def error_of_load() -> None:
    """More than the server takes at once."""
    with raises(OverloadedError) as raised:
        complete(do_sample=True, best_of=17, max_new_tokens=1)
    assert "overloaded" in str(raised.error)


@script.call
def error_of_chat() -> None:
    """A chat error has the status, and the server's text."""
    with raises(HfHubHTTPError) as raised:
        client.chat_completion(ASKED, top_p=3.0)
    assert raised.error.response.status_code == 422 and "top_p" in raised.error.response.text


@script.call
def error_of_key() -> None:
    """A wrong key."""
    wrong: Any = InferenceClient(base_url=script.url, api_key="wrong", timeout=60)
    with raises(HfHubHTTPError) as raised:
        wrong.chat_completion(ASKED)
    assert raised.error.response.status_code == 401


@script.call
async def async_text() -> None:
    """Four texts at once."""
    one = make_client()
    texts = await asyncio.gather(*(one.text_generation(PROMPT, return_full_text=False, max_new_tokens=5) for _ in range(4)))
    assert len(set(texts)) == 1 and texts[0].startswith(" Paris")


@script.call
async def async_text_stream() -> None:
    """A streamed text with details."""
    one = make_client()
    outputs = [
        output
        async for output in await one.text_generation(PROMPT, return_full_text=False, max_new_tokens=5, stream=True, details=True)
    ]
    assert outputs[-1].details.generated_tokens == len(outputs) and outputs[-1].generated_text.startswith(" Paris")


@script.call
async def async_chat() -> None:
    """A chat."""
    answer = await make_client().chat_completion(ASKED, temperature=0, max_tokens=40)
    assert answer.choices[0].message.content == ANSWER


@script.call
async def async_chat_stream() -> None:
    """A streamed chat."""
    one = make_client()
    stream = await one.chat_completion(ASKED, temperature=0, max_tokens=40, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == ANSWER


@script.call
async def async_error() -> None:
    """Errors have the same classes."""
    with raises(ValidationError):
        await make_client().text_generation(PROMPT, top_p=1.5)


script.run()
