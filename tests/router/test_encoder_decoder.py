"""An encoder-decoder over HTTP: prompts are the encoder's, all that is counted and shown of an answer is the decoder's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest
from tgi_router import ServedModel, create_app
from tokenizers import Tokenizer as Fast
from tokenizers.decoders import Metaspace as MetaspaceDecoder
from tokenizers.models import Unigram
from tokenizers.pre_tokenizers import Metaspace
from tokenizers.processors import TemplateProcessing

from tests.engine.encoder_decoders import START, expected_tokens, save_tiny
from tests.engine.tiny_models import VOCAB
from tests.router.serving import Served, serving
from tests.router.shard import Shard
from tgi_core.backend import OpenOptions, WarmupPlan
from tgi_core.backend.registry import find
from tgi_core.backend.session import Session
from tgi_core.config import Settings
from tgi_core.tokenizer import Tokenizer

TEXT = "the encoder reads this"


def save_tokenizer(folder: Path) -> None:
    """T5's kind of tokenizer: pieces of words, and an end after each text."""
    pairs = [first + second for first in ascii_lowercase for second in ascii_lowercase]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<start>", 0.0), ("▁", -2.0), *((letter, -3.0) for letter in ascii_lowercase)]
    pieces += [(f"▁{letter}", -3.0) for letter in ascii_lowercase] + [(pair, -5.0) for pair in pairs]
    fast = Fast(Unigram(pieces[:VOCAB], unk_id=0))
    fast.pre_tokenizer, fast.decoder = Metaspace(), MetaspaceDecoder()
    fast.add_special_tokens(["<pad>", "</s>", "<start>"])
    fast.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    fast.save(str(folder / "tokenizer.json"))


class EncoderShard(Shard):
    """A shard with a tiny T5."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Tokenizer.load(folder), WarmupPlan(max_rows=4, max_row_tokens=64), grammars=True)
        self._folder = folder

    def _session(self) -> Session:
        options = OpenOptions(str(self._folder), dtype="float32", masks=self.masks)
        return Session(find("cpu").open(options, lambda *_: None), "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory."""
    folder = save_tiny("t5", tmp_path_factory.mktemp("t5"))
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    """The whole server on a socket."""
    settings = Settings(enable_prefill_logprobs=True, max_total_tokens=64)
    model = ServedModel.load(folder, "tiny-t5", settings)
    with serving(lambda generator: create_app(settings, model, generator), EncoderShard(folder).opening) as running:
        yield running


def post(served: Served, path: str, body: dict[str, Any], status: int = 200) -> Any:
    """The body of an answer."""
    answer = served.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_generate(served: Served, folder: Path) -> None:
    """The tokens are those of transformers' `generate`, the prompt's length is the encoder's, and prefill details are the start token."""
    prompt = Tokenizer.load(folder).encode(TEXT).ids
    parameters = {"max_new_tokens": 12, "decoder_input_details": True}
    answer = served.client.post("/generate", json={"inputs": TEXT, "parameters": parameters})
    details = answer.json()["details"]
    made = [token["id"] for token in details["tokens"]]
    assert prompt[-1] == 1 and made == expected_tokens(folder, [prompt], 12)[0][: len(made)]
    assert details["prefill"] == [{"id": START, "text": "<start>", "logprob": None}]
    assert answer.headers["x-prompt-tokens"] == str(len(prompt))
    assert (
        answer.json()["generated_text"] == "".join(token["text"] for token in details["tokens"] if not token["special"]).strip()
    )


def test_streams_and_seeds(served: Served) -> None:
    """A stream has the tokens of the whole answer, and a seed draws them again."""
    parameters = {"max_new_tokens": 9, "do_sample": True, "seed": 5, "details": True, "repetition_penalty": 1.2}
    whole = post(served, "/generate", {"inputs": TEXT, "parameters": parameters})
    text = served.client.post("/generate_stream", json={"inputs": TEXT, "parameters": parameters}).text
    events = [json.loads(event[5:]) for event in text.split("\n\n")[:-1]]
    assert [event["token"] for event in events] == whole["details"]["tokens"]
    assert events[-1]["generated_text"] == whole["generated_text"]


def test_grammars_and_stops(served: Served) -> None:
    """A grammar holds from the decoder's first token on, and stop sequences end its text."""
    grammar = {"type": "regex", "value": "(ab|ba)c{2,3}x"}
    made = post(served, "/generate", {"inputs": TEXT, "parameters": {"max_new_tokens": 20, "grammar": grammar}})
    assert made["generated_text"] in {"abccx", "abcccx", "baccx", "bacccx"}
    stopped = post(served, "/generate", {"inputs": TEXT, "parameters": {"grammar": grammar, "stop": ["cc"], "details": True}})
    assert stopped["details"]["finish_reason"] == "stop_sequence" and stopped["generated_text"][2:] == "cc"


def test_other_routes(served: Served) -> None:
    """POST / has no prompt in its text unless asked; /v1/completions counts the prompt; chats lack a template; /info names the task."""
    body = {"inputs": TEXT, "parameters": {"max_new_tokens": 3}}
    plain = post(served, "/generate", body)["generated_text"]
    assert post(served, "/", body) == [{"generated_text": plain}]
    asked = {"inputs": TEXT, "parameters": {"max_new_tokens": 3, "return_full_text": True}}
    assert post(served, "/", asked) == [{"generated_text": TEXT + plain}]
    completion = post(served, "/v1/completions", {"model": "x", "prompt": TEXT, "max_tokens": 3, "temperature": 0, "logprobs": 1})
    assert completion["choices"][0]["text"].strip() == plain and completion["usage"]["prompt_tokens"] > 3
    chat = {"model": "x", "messages": [{"role": "user", "content": TEXT}]}
    assert "template" in post(served, "/v1/chat/completions", chat, 422)["error"]["message"]
    info = served.client.get("/info").json()
    assert info["model_pipeline_tag"] == "text2text-generation" and info["max_input_tokens"] == 63


def test_refusals(served: Served) -> None:
    """Logprobs of the prompt, whose tokens have none, and more tokens than fit."""
    echo = {"model": "x", "prompt": TEXT, "max_tokens": 3, "echo": True, "logprobs": 0}
    assert "go to its encoder" in post(served, "/v1/completions", echo, 422)["error"]["message"]
    long = {"inputs": TEXT, "parameters": {"max_new_tokens": 64}}
    assert post(served, "/generate", long, 422)["error_type"] == "validation"
