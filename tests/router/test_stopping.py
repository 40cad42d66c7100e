"""stop_token_ids, min_tokens, skip_special_tokens and prompt_logprobs under /v1, over the whole path to the demo model and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tgi_router import ServedModel, create_app

from tests.router.scripted import NOTHING, ScriptedGenerator, says
from tests.router.serving import Served, already, serving
from tests.router.shard import Shard
from tgi_core.backend import WarmupPlan
from tgi_core.config import Settings

GREEDY = {"prompt": "The quick brown fox", "max_tokens": 12, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def served(model: ServedModel) -> Iterator[Served]:
    """The whole instance on a socket."""
    shard = Shard(model.tokenizer, WarmupPlan(max_rows=4, max_row_tokens=256), grammars=True, on_cpu="float32")
    settings = Settings(enable_prefill_logprobs=True)
    with serving(lambda generator: create_app(settings, model, generator), shard.opening) as running:
        yield running


def ids_of(served: Served, inputs: str = "The quick brown fox") -> list[int]:
    """Ids of the greedy tokens."""
    body = {"inputs": inputs, "parameters": {"max_new_tokens": 12, "details": True, "ignore_eos_token": True}}
    answer = served.client.post("/generate", json=body).json()
    return [token["id"] for token in answer["details"]["tokens"]]


def complete(served: Served, **more: Any) -> Any:
    """The choice of a completion, with its usage."""
    answer = served.client.post("/v1/completions", json={**GREEDY, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0] | {"tokens": answer.json()["usage"]["completion_tokens"]}


def streamed(served: Served, path: str, body: dict[str, Any]) -> tuple[str, str]:
    """The text of a stream, and its finish reason."""
    *events, done, _ = served.client.post(path, json={**body, "stream": True}).text.split("\n\n")
    assert done == "data: [DONE]"
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    pieces = [choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices]
    return "".join(pieces), choices[-1]["finish_reason"]


def chatted(served: Served, **more: Any) -> tuple[str, str]:
    """The text of a chat, and its finish reason."""
    answer = served.client.post("/v1/chat/completions", json={**CHAT, **more})
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    return choice["message"]["content"], choice["finish_reason"]


def test_a_stop_token_ends_the_text(served: Served, model: ServedModel) -> None:
    """The text ends before a stop token, streamed or not; the token counts, and its log probability is told."""
    made = ids_of(served)
    stop = next(id for place, id in enumerate(made) if place > 2 and id not in made[:place])
    count = made.index(stop) + 1
    given = {"stop_token_ids": [stop, 5], "logprobs": 1}
    choice = complete(served, **given)
    assert (choice["finish_reason"], choice["tokens"]) == ("stop", count)
    assert complete(served)["text"].startswith(choice["text"])
    assert choice["text"] == complete(served, max_tokens=count - 1, ignore_eos=True)["text"]
    assert choice["logprobs"]["tokens"][-1] == model.tokenizer.decode([stop])
    assert streamed(served, "/v1/completions", {**GREEDY, **given}) == (choice["text"], "stop")


def test_a_stop_token_ends_a_chat(served: Served, model: ServedModel) -> None:
    """So does a chat, even at the last allowed token and with `ignore_eos`."""
    given = {"logit_bias": {"300": 100}, "stop_token_ids": [300], "min_tokens": 1, "ignore_eos": True, "max_tokens": 2}
    text = chatted(served, max_tokens=1)[0]
    assert text and text != model.tokenizer.decode([300])
    assert chatted(served, **given) == streamed(served, "/v1/chat/completions", {**CHAT, **given}) == (text, "stop")


def eos(model: ServedModel) -> dict[str, Any]:
    """A request whose every token is the end of sequence, where that is allowed."""
    return {"logit_bias": {str(min(model.tokenizer.eos_ids)): 100}}


def test_a_minimum_of_tokens(served: Served, model: ServedModel) -> None:
    """Neither EOS, which is not even sampled, nor a stop token nor a stop string ends a text before its minimum."""
    assert complete(served, **eos(model))["tokens"] == 1
    for least in (1, 5, 10):
        choice = complete(served, **eos(model), min_tokens=least, logprobs=1)
        assert (choice["tokens"], choice["finish_reason"]) == (least + 1, "stop")
        ends = [token in model.tokenizer.special_texts for token in choice["logprobs"]["tokens"]]
        assert ends == [False] * least + [True]
    assert complete(served, **eos(model), min_tokens=12)["finish_reason"] == "length"
    banned = {"logit_bias": {"5": 100}, "stop_token_ids": [5]}
    assert (complete(served, **banned)["tokens"], complete(served, **banned, min_tokens=4)["tokens"]) == (1, 5)
    forced = {"logit_bias": {"300": 100}, "stop": [model.tokenizer.decode([300]) * 2]}
    assert [complete(served, **forced, min_tokens=least)["tokens"] for least in (0, 1, 2, 5)] == [2, 2, 3, 6]


def test_a_minimum_in_a_chat(served: Served, model: ServedModel) -> None:
    """A chat has at least `min_tokens` tokens, streamed or not."""
    text, reason = chatted(served, **eos(model), min_tokens=3)
    assert text and reason == "stop"
    assert streamed(served, "/v1/chat/completions", {**CHAT, **eos(model), "min_tokens": 3}) == (text, reason)


def test_special_tokens_are_shown(served: Served, model: ServedModel) -> None:
    """With `skip_special_tokens: false`, special tokens are part of the text, but for the one that ends it."""
    shown = model.tokenizer.decode([min(model.tokenizer.eos_ids)])
    given = {**eos(model), "max_tokens": 3, "ignore_eos": True}
    assert complete(served, **given)["text"] == complete(served, **given, skip_special_tokens=True)["text"] == ""
    given |= {"skip_special_tokens": False}
    assert complete(served, **given)["text"] == shown * 3
    assert complete(served, **given, stop=[shown * 2])["text"] == ""
    assert complete(served, **given, logprobs=1)["logprobs"]["text_offset"] == [0, len(shown), 2 * len(shown)]
    assert streamed(served, "/v1/completions", {**GREEDY, **given}) == (shown * 3, "length")
    assert chatted(served, **given) == streamed(served, "/v1/chat/completions", {**CHAT, **given}) == (shown * 3, "length")
    given |= {"ignore_eos": False}
    assert complete(served, **given)["text"] == "" and streamed(served, "/v1/chat/completions", {**CHAT, **given}) == ("", "stop")
    assert complete(served, skip_special_tokens=False, max_tokens=0)["text"] == ""
    plain = complete(served, skip_special_tokens=False)["text"]
    assert plain.startswith(complete(served)["text"][:3])


def test_logprobs_of_the_prompt(served: Served) -> None:
    """`prompt_logprobs: 0` returns what /generate returns of the prompt: with each text of a completion, once with a chat."""
    body = {"inputs": GREEDY["prompt"], "parameters": {"max_new_tokens": 1, "decoder_input_details": True}}
    first, *others = served.client.post("/generate", json=body).json()["details"]["prefill"]
    choice = complete(served, prompt_logprobs=0)
    assert first["logprob"] is None and choice["prompt_logprobs"] == [
        None,
        *({str(each["id"]): {"logprob": each["logprob"], "rank": None, "decoded_token": each["text"]}} for each in others),
    ]
    both = served.client.post(
        "/v1/completions", json={**GREEDY, "prompt": ["Hi you", "Hi you"], "prompt_logprobs": 0, "n": 2}
    ).json()
    assert len({json.dumps(each["prompt_logprobs"]) for each in both["choices"]}) == 1
    answer = served.client.post("/v1/chat/completions", json={**CHAT, "prompt_logprobs": 0}).json()
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in served.client.post("/v1/chat/completions", json=CHAT).json()


def test_logprobs_of_an_echoed_prompt(served: Served) -> None:
    """`echo` with `logprobs: 0` puts the prompt's tokens before those of the text, with what `prompt_logprobs` returns of them."""
    alone = complete(served, prompt_logprobs=0, logprobs=0)
    prompt = [next(iter(each.values())) for each in alone["prompt_logprobs"][1:]]
    for most in (2, 0):
        choice = complete(served, echo=True, logprobs=0, max_tokens=most)
        first, *texts = choice["logprobs"]["tokens"]
        logprobs = [None, *(each["logprob"] for each in prompt), *alone["logprobs"]["token_logprobs"][:most]]
        assert choice["logprobs"]["token_logprobs"] == logprobs
        assert "".join(texts) == choice["text"] and choice["text"].startswith(GREEDY["prompt"])
        assert choice["logprobs"]["text_offset"] == [0, *(len("".join(texts[:count])) for count in range(len(texts)))]
        assert first == "<|bos|>" and choice["logprobs"]["top_logprobs"] is None


def test_what_an_echo_cannot_have(served: Served) -> None:
    """Backends do not say which token was the likeliest in the place of one of the prompt: nothing pretends to know."""
    for given, text in (
        ({"logprobs": 1}, "`echo` needs `logprobs` to be 0, for the prompt's own tokens; others have none. Given: 1"),
        ({"logprobs": 0, "stream": True}, "`echo` with `logprobs` is not supported when streaming tokens"),
    ):
        answer = served.client.post("/v1/completions", json={**GREEDY, "echo": True, **given})
        assert answer.status_code == 422 and text in answer.json()["error"]["message"]


REFUSED = [
    ({"prompt_logprobs": 1}, "`prompt_logprobs` must be 0, for the prompt's own tokens; others have none. Given: 1"),
    ({"prompt_logprobs": -1}, "`prompt_logprobs` must be 0"),
    ({"prompt_logprobs": 0, "stream": True}, "`prompt_logprobs` is not supported when streaming tokens"),
    ({"prompt_logprobs": True}, "prompt_logprobs"),
    ({"stop_token_ids": [-1]}, "stop_token_ids.0"),
    ({"stop_token_ids": [2048]}, "`stop_token_ids` names tokens by their ids, which are >= 0 and < 2048"),
    ({"stop_token_ids": list(range(129))}, "`stop_token_ids` supports up to 128 tokens. Given: 129"),
    ({"stop_token_ids": ["5"]}, "stop_token_ids"),
    ({"stop_token_ids": 5}, "stop_token_ids"),
    ({"min_tokens": 13}, "`min_tokens` must be <= `max_tokens`, here 12"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 1.5}, "min_tokens"),
    ({"min_tokens": 2, "guided_regex": "a+"}, "`min_tokens` cannot be combined with a grammar"),
    ({"skip_special_tokens": "no"}, "skip_special_tokens"),
]


@pytest.mark.parametrize(("given", "text"), REFUSED)
def test_bad_values(served: Served, given: dict[str, Any], text: str) -> None:
    """A bad value is refused, and the message names its field."""
    for path, body in (("/v1/completions", GREEDY), ("/v1/chat/completions", CHAT)):
        answer = served.client.post(path, json={**body, **given})
        assert answer.status_code == 422 and text in answer.json()["error"]["message"], answer.text


def test_a_backend_without_masks(model: ServedModel) -> None:
    """Where tokens cannot be masked, a minimum is refused, and a stop token is not."""
    generator = ScriptedGenerator(lambda request: says("aa"), capabilities=NOTHING)
    with serving(lambda made: create_app(Settings(), model, made), already(generator)) as bare:
        answer = bare.client.post("/v1/chat/completions", json={**CHAT, "min_tokens": 2})
        assert answer.status_code == 422 and "`min_tokens` is not supported by this backend" in answer.text
        assert bare.client.post("/v1/chat/completions", json={**CHAT, "stop_token_ids": [5]}).status_code == 200
        answer = bare.client.post("/v1/chat/completions", json={**CHAT, "prompt_logprobs": 0})
        assert answer.status_code == 422 and "`prompt_logprobs` needs the server's --enable-prefill-logprobs" in answer.text


def test_a_shard_of_tgi(model: ServedModel) -> None:
    """TGI's shards know no stop tokens: they are refused, not ignored."""
    generator = ScriptedGenerator(lambda request: says("aa"))
    generator.info = replace(generator.info, api=(0, 0))
    with serving(lambda made: create_app(Settings(), model, made), already(generator)) as foreign:
        answer = foreign.client.post("/v1/completions", json={**GREEDY, "stop_token_ids": [5]})
        assert answer.status_code == 422 and "`stop_token_ids` is not supported by TGI's shards; use `stop`" in answer.text
