"""openai: chat and text completions, headers, models and errors, sync and async."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
from asking_openai import ASKED, GREEDY, MODEL, client, create, make_client, script
from calls import ANSWER, PROMPT, QUESTION, raises


@script.call
def chat() -> None:
    """An answer with id, finish reason and usage."""
    answer = create()
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content == ANSWER and choice.finish_reason == "stop"
    assert answer.id and answer.object == "chat.completion" and answer.created > 1_700_000_000
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens and usage.completion_tokens > 3


@script.call
def chat_defaults() -> None:
    """A request with nothing but messages is answered."""
    assert client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=8).choices[0].message.content


@script.call
def chat_system_and_history() -> None:
    """Roles, a conversation of several turns, and content as a list of parts."""
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "Hello! How can I help you?"},
        {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
    ]
    assert "Paris" in create(messages=messages).choices[0].message.content


@script.call
def chat_unknown_model() -> None:
    """An unknown model's name is echoed."""
    assert create(model="gpt-4o-mini", max_tokens=2).model == "gpt-4o-mini"


@script.call
def chat_length() -> None:
    """max_completion_tokens ends an answer with `length`."""
    answer = client.chat.completions.create(model=MODEL, messages=ASKED, temperature=0, max_completion_tokens=3)
    assert answer.choices[0].finish_reason == "length" and answer.usage is not None and answer.usage.completion_tokens == 3


@script.call
def chat_stop() -> None:
    """A stop string, alone or in a list, is not part of the answer."""
    for stop in (" Paris", [" Paris", "!"]):
        choice = create(stop=stop).choices[0]
        assert choice.message.content == "The capital of France is" and choice.finish_reason == "stop"


@script.call
def chat_seed() -> None:
    """The same seed gives the same sampled answer."""
    first, second = (create(temperature=1.5, top_p=0.95, seed=7).choices[0].message.content for _ in range(2))
    assert first == second


@script.call
def chat_openai_defaults() -> None:
    """The values that OpenAI documents as defaults are accepted."""
    answer = create(
        temperature=1, top_p=1, n=1, presence_penalty=0, frequency_penalty=0, logit_bias={}, stop=None, user="me", store=False
    )
    assert answer.choices[0].message.content


@script.call
def chat_n() -> None:
    """`n` answers, numbered."""
    choices = create(n=3, temperature=1.0, seed=1).choices
    assert [choice.index for choice in choices] == [0, 1, 2] and all(choice.message.content for choice in choices)


@script.call
def chat_logprobs() -> None:
    """Logprobs with their rivals and bytes."""
    content = create(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert "".join(each.token for each in content).startswith(ANSWER)
    assert all(each.logprob <= 0 and len(each.top_logprobs) == 2 for each in content)
    assert b"".join(bytes(each.bytes) for each in content).startswith(ANSWER.encode())


@script.call
def chat_logit_bias() -> None:
    """A bias of 100 makes the model repeat one token."""
    content = create(logit_bias={"100": 100}, max_tokens=4, logprobs=True).choices[0].logprobs.content
    assert len({each.token for each in content}) == 1 and len(content) == 4


@script.call
def chat_penalties() -> None:
    """Presence and frequency penalties by OpenAI's definition are taken."""
    assert create(presence_penalty=1.5, frequency_penalty=0.5).choices[0].message.content


@script.call
def chat_stream() -> None:
    """The first chunk has the role, the last the reason; all have one id; the pieces are the answer."""
    chunks = list(create(stream=True))
    assert chunks[0].choices[0].delta.role == "assistant" and len(chunks) > 3
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
    assert len({chunk.id for chunk in chunks}) == 1 and chunks[0].id


@script.call
def chat_stream_usage() -> None:
    """include_usage adds a last chunk without choices that counts the tokens."""
    chunks = list(create(stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 3
    assert all(chunk.usage is None for chunk in chunks[:-1])


@script.call
def chat_stream_n() -> None:
    """Streams of several choices can be told apart."""
    texts = {0: "", 1: ""}
    for chunk in create(stream=True, n=2):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {0: ANSWER, 1: ANSWER}


@script.call
def chat_stream_accumulated() -> None:
    """The client's own accumulator ends with the whole answer."""
    with client.chat.completions.stream(model=MODEL, messages=ASKED, temperature=0, max_tokens=40, logprobs=True) as stream:
        kinds = [event.type for event in stream]
        whole = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= set(kinds), kinds
    assert whole.choices[0].message.content == ANSWER and whole.choices[0].message.role == "assistant"


@script.call
def chat_stream_left() -> None:
    """A stream may be left in the middle, and the server goes on."""
    with create(stream=True, max_tokens=1000, stop=[]) as stream:
        next(iter(stream))
    assert create(max_tokens=2).choices


@script.call
def completion() -> None:
    """A text completion with its usage."""
    answer = client.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=5)
    assert answer.object == "text_completion" and answer.choices[0].text.startswith(" Paris") and answer.id
    assert answer.usage is not None and answer.usage.prompt_tokens > 0


@script.call
def completion_batch() -> None:
    """Several prompts are answered in their order."""
    prompts = [PROMPT, "The capital of Japan is"]
    first, second = client.completions.create(model=MODEL, prompt=prompts, temperature=0, max_tokens=5).choices
    assert (first.index, second.index) == (0, 1) and "Paris" in first.text and "Tokyo" in second.text


@script.call
def completion_stream() -> None:
    """The pieces are the text; the last has the reason."""
    chunks = list(client.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=5, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks).startswith(" Paris")
    assert chunks[-1].choices[0].finish_reason in {"stop", "length"}


@script.call
def completion_stream_usage() -> None:
    """include_usage counts the tokens of a streamed completion."""
    options: Any = {"include_usage": True}
    stream = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=3, stream=True, stream_options=options)
    usage = list(stream)[-1].usage
    assert usage is not None and usage.completion_tokens == 3


@script.call
def completion_echo() -> None:
    """echo puts the prompt before each text, once, whole or streamed."""
    asked: Any = {"model": MODEL, "prompt": [PROMPT, "Two plus"], "temperature": 0, "max_tokens": 3, "echo": True, "n": 2}
    whole = [choice.text for choice in client.completions.create(**asked).choices]
    assert whole[0] == whole[1] and whole[0].startswith(f"{PROMPT} Paris") and whole[2].startswith("Two plus")
    texts = ["", "", "", ""]
    for chunk in client.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == whole


@script.call
def completion_logprobs() -> None:
    """logprobs gives the tokens, their logprobs, so many rivals, and where in the text each begins; streamed alike."""
    asked: Any = {"model": MODEL, "prompt": PROMPT, "temperature": 0, "max_tokens": 2, "logprobs": 3}
    choice = client.completions.create(**asked).choices[0]
    told = choice.logprobs
    assert told is not None and told.tokens and told.token_logprobs and told.top_logprobs and told.text_offset
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(told.text_offset) == 2
    for token, logprob, top, offset in zip(told.tokens, told.token_logprobs, told.top_logprobs, told.text_offset, strict=True):
        assert top[token] == logprob <= 0 and len(top) == 3 and choice.text[offset:].startswith(token)
    chunks = [each.choices[0].logprobs for each in client.completions.create(**asked, stream=True)]
    assert [token for each in chunks for token in each.tokens] == told.tokens
    assert [offset for each in chunks for offset in each.text_offset] == told.text_offset
    alone = client.completions.create(**asked | {"logprobs": 0}).choices[0].logprobs
    assert alone.token_logprobs == told.token_logprobs and alone.top_logprobs is None


@script.call
def completion_best_of() -> None:
    """best_of draws so many texts and gives the n likeliest, the best first; all of them are paid for."""
    asked: Any = {"model": MODEL, "prompt": [PROMPT, PROMPT], "temperature": 1.5, "max_tokens": 4, "seed": 3, "logprobs": 0}
    all_of_them = client.completions.create(**asked, n=4)
    best = client.completions.create(**asked, n=2, best_of=4)

    def mean(choice: Any) -> float:
        return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

    means = [mean(choice) for choice in all_of_them.choices]
    wanted = [sorted(means[:4], reverse=True)[:2], sorted(means[4:], reverse=True)[:2]]
    assert [mean(choice) for choice in best.choices] == wanted[0] + wanted[1]
    assert [choice.index for choice in best.choices] == [0, 1, 2, 3]
    assert best.usage.completion_tokens == all_of_them.usage.completion_tokens


@script.call
def completion_refusals() -> None:
    """What is not supported is refused by name: suffix, logprobs of the prompt, and what best_of cannot do."""
    cases: list[tuple[str, Any]] = [
        ("Suffix is not supported", {"suffix": "x"}),
        ("`echo` needs `logprobs` to be 0", {"echo": True, "logprobs": 1}),
        ("`best_of` must be >= `n`", {"n": 3, "best_of": 2}),
        ("`best_of` must be > 0 and <= ", {"best_of": 1000}),
        ("when streaming", {"best_of": 2, "stream": True}),
        ("use sampling", {"best_of": 2, "temperature": 0}),
        ("`logprobs` must be", {"logprobs": 21}),
        ("`n` must be > 0", {"n": 0}),
    ]
    for text, more in cases:
        with raises(openai.UnprocessableEntityError) as raised:
            client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=1, **more)
        assert text in str(raised.error), (text, raised.error)


@script.call
def raw_response() -> None:
    """with_raw_response shows TGI's headers, and parses."""
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=ASKED, temperature=0, max_tokens=40)
    wanted = ("x-compute-type", "x-total-time", "x-queue-time", "x-inference-time", "x-prompt-tokens", "x-generated-tokens")
    assert raw.status_code == 200 and all(raw.headers.get(name) for name in wanted), dict(raw.headers)
    answer = raw.parse()
    assert answer.usage is not None and int(raw.headers["x-generated-tokens"]) == answer.usage.completion_tokens
    assert answer.choices[0].message.content == ANSWER


@script.call
def streaming_response() -> None:
    """with_streaming_response shows the headers and lines of an event stream, which ends with [DONE]."""
    create_streaming = client.chat.completions.with_streaming_response.create
    with create_streaming(model=MODEL, messages=ASKED, temperature=0, max_tokens=3, stream=True) as response:
        assert response.headers["content-type"].startswith("text/event-stream") and response.headers["x-compute-type"]
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"


@script.call
def models_list() -> None:
    """One model is listed, and can be asked for."""
    (model,) = client.models.list().data
    assert model.id and model.object == "model" and create(model=model.id, max_tokens=1).model == model.id


@script.call
def error_of_validation() -> None:
    """A value out of range is an UnprocessableEntityError that names the field."""
    with raises(openai.UnprocessableEntityError) as raised:
        create(top_p=2)
    assert "top_p" in raised.error.message and raised.error.code == "validation"
    assert raised.error.type == "invalid_request_error" and raised.error.body["message"]


@script.call
def error_of_validation_streamed() -> None:
    """The same for a stream, before it begins."""
    with raises(openai.UnprocessableEntityError):
        create(top_p=2, stream=True)


@script.call
def error_of_length() -> None:
    """A prompt that does not fit has OpenAI's code for it."""
    with raises(openai.UnprocessableEntityError) as raised:
        create(messages=[{"role": "user", "content": "word " * 4000}])
    assert raised.error.code == "context_length_exceeded"


@script.call
def error_of_type() -> None:
    """A field of the wrong type is refused with its name."""
    with raises(openai.UnprocessableEntityError) as raised:
        create(max_tokens="many")
    assert "max_tokens" in raised.error.message


@script.call
def error_of_key() -> None:
    """A wrong key is an AuthenticationError."""
    with raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


@script.call
def error_of_path() -> None:
    """A route that is not there is a NotFoundError."""
    with raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL, input="text")


@script.call
def error_of_load() -> None:
    """More than the server takes at once is a RateLimitError that says when to come back."""
    with raises(openai.RateLimitError) as raised:
        client.completions.create(model=MODEL, prompt=[PROMPT] * 4, n=8, max_tokens=1)
    assert raised.error.response.headers["retry-after"] == "1" and raised.error.code == "overloaded"


@script.call
async def async_chat() -> None:
    """Four requests at once, each answered."""
    async with make_client() as many:
        answers = await asyncio.gather(*(many.chat.completions.create(**GREEDY) for _ in range(4)))
    assert [answer.choices[0].message.content for answer in answers] == [ANSWER] * 4


@script.call
async def async_stream() -> None:
    """An async stream gives the answer in pieces."""
    async with make_client() as one:
        pieces = [
            chunk.choices[0].delta.content or "" async for chunk in await one.chat.completions.create(**GREEDY, stream=True)
        ]
    assert "".join(pieces) == ANSWER and len(pieces) > 3


@script.call
async def async_completion() -> None:
    """A text completion over the async client."""
    async with make_client() as one:
        answer = await one.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=5)
    assert answer.choices[0].text.startswith(" Paris")


@script.call
async def async_error() -> None:
    """Errors of the async client have the same classes."""
    async with make_client() as one:
        with raises(openai.UnprocessableEntityError):
            await one.chat.completions.create(model=MODEL, messages=ASKED, top_p=-1)


script.run()
