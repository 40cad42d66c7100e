"""The requests of TGI's own integration tests for vision models, and the shapes of its answers, per family.

The families are served by tiny checkpoints of random weights, so the texts mean nothing: what is checked are fields, counts and errors.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
import transformers
from transformers import AutoTokenizer

from tests.engine.image_models import image, save_model
from tests.media.pictures import encoded
from tests.serve.process import ServerProcess, run, served
from tgi_core.media.decoding import decode_image
from tgi_core.media.processor import MediaProcessor
from tgi_core.model_files import DEMO

needs_torchvision = pytest.mark.skipif(
    find_spec("torchvision") is None, reason="its processor needs torchvision: make test-images"
)
SERVED = (
    *("idefics2", "idefics3", "llava_next", "gemma3", "mllama", "paligemma"),
    *(pytest.param(family, marks=needs_torchvision) for family in ("qwen2_vl", "smolvlm")),
)
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}IMAGE{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
)

MARKED = {"qwen2_vl": "<|vision_start|>{}<|vision_end|>"}
"""How the chat templates of a family write an image, if not by its placeholder alone."""


def url(data: bytes, kind: str = "png") -> str:
    """A `data:` URL."""
    return f"data:image/{kind};base64,{b64encode(data).decode()}"


CHICKEN, COW = url(encoded(image(1, 60, 45))), url(encoded(image(2, 33, 70), "JPEG"), "jpeg")
RGBA = url(encoded(image(3, 40, 40).convert("RGBA")))
WRONG = {
    "data:image/png;base64,not*base64": "base64",
    url(b"not a picture"): "image",
    url(encoded(image(1, 90, 90))[:200]): "image",
    "https://example.com/cow.png": "fetch",
}
"""URLs of images that are refused, and a word of the reason."""


class Client:
    """What TGI's tests ask for, of one served family."""

    def __init__(self, server: ServerProcess, processor: MediaProcessor, inline: str) -> None:
        self.server, self.processor, self.placeholder_id = server, processor, processor.placeholder_id
        self.inline = inline

    def post(self, path: str, body: dict[str, Any], status: int = 200) -> Any:
        """The JSON of an answer."""
        answer = httpx.post(self.server.url + path, json=body, timeout=120)
        assert answer.status_code == status, answer.text
        return answer.json()

    def generate(self, inputs: str, **parameters: Any) -> dict[str, Any]:
        """`/generate` with details."""
        asked = {"details": True, "decoder_input_details": True} | parameters
        found: dict[str, Any] = self.post("/generate", {"inputs": inputs, "parameters": asked})
        return found

    def chat(self, *urls: str, text: str = "What do you see?", **more: Any) -> dict[str, Any]:
        """A chat of one message, images first."""
        found: dict[str, Any] = self.post("/v1/chat/completions", message(*urls, text=text) | {"max_tokens": 10} | more)
        return found

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The data of a stream's events, in order."""
        with httpx.stream("POST", self.server.url + path, json=body, timeout=120) as answer:
            assert answer.status_code == 200
            lines = [line.removeprefix("data:").strip() for line in answer.iter_lines() if line.startswith("data:")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]


def message(*urls: str, text: str = "What do you see?") -> dict[str, Any]:
    """A conversation of one message."""
    images = [{"type": "image_url", "image_url": {"url": each}} for each in urls]
    return {"model": "tgi", "messages": [{"role": "user", "content": [*images, {"type": "text", "text": text}]}], "seed": 42}


@pytest.fixture(scope="module", params=SERVED)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One server per family."""
    directory = save_model(request.param, tmp_path_factory.mktemp("vision") / request.param)
    processor = MediaProcessor(directory)
    inline = MARKED.get(request.param, "{}").format(processor.placeholder)
    (directory / "chat_template.jinja").write_text(TEMPLATE.replace("IMAGE", inline))
    with served(str(directory), "--backend", "cpu", "--dtype", "float32", "--enable-prefill-logprobs") as server:
        yield Client(server, processor, inline)


def placeholders(client: Client, answer: dict[str, Any]) -> int:
    """How many tokens of a prompt stand for images."""
    return sum(token["id"] == client.placeholder_id for token in answer["details"]["prefill"])


def test_generate(client: Client) -> None:
    """`test_flash_…_simple`: Markdown in a prompt; the prompt's tokens, those of the image among them, and ten new ones."""
    answer = client.generate(f"User:![]({CHICKEN})Write me a short story<end_of_utterance> \nAssistant:", max_new_tokens=10)
    assert answer.keys() == {"generated_text", "details"}
    details = answer["details"]
    assert {"finish_reason", "generated_tokens", "seed", "prefill", "tokens"} <= details.keys()
    assert details["generated_tokens"] == len(details["tokens"]) == 10 and details["finish_reason"] == "length"
    assert {"id", "text", "logprob"} <= details["prefill"][0].keys() and details["prefill"][0]["logprob"] is None
    assert all(token.keys() == {"id", "text", "logprob", "special"} for token in details["tokens"])
    assert placeholders(client, answer) > 0
    assert "base64" not in json.dumps(answer)


def test_marks(client: Client) -> None:
    """An image in Markdown has the marks around it that the model's chat template writes; TGI's routes write the same."""
    answer = client.generate(f"Two:![]({CHICKEN})![]({COW})Well?", max_new_tokens=1)
    pictures = [decode_image(b64decode(each.partition(",")[2])) for each in (CHICKEN, COW)]
    expected = client.processor.ids(f"Two:{client.inline * 2}Well?", pictures, special=True)
    assert tuple(token["id"] for token in answer["details"]["prefill"]) == expected


def test_two_images(client: Client) -> None:
    """`…_two_images`: tokens of both, in order; another order is another prompt."""
    one = client.generate(f"User:![]({CHICKEN}) Where is it? \nAssistant:", max_new_tokens=8)
    both = client.generate(f"User:![]({CHICKEN})![]({COW}) Where are the cow and chicken? \nAssistant:", max_new_tokens=20)
    turned = client.generate(f"User:![]({COW})![]({CHICKEN}) Where are the cow and chicken? \nAssistant:", max_new_tokens=20)
    assert both["details"]["generated_tokens"] == 20
    assert placeholders(client, both) == placeholders(client, turned) > placeholders(client, one)
    assert both["details"]["prefill"] != turned["details"]["prefill"]


def test_all_parameters(client: Client) -> None:
    """`…_all_params`: every sampling parameter at once, and the same answer for the same seed."""
    parameters = {
        "max_new_tokens": 10, "repetition_penalty": 1.2, "return_full_text": True, "stop": ["test"], "temperature": 0.5, "top_p": 0.9,
        "top_k": 10, "truncate": None, "typical_p": 0.9, "watermark": True, "seed": 0, "do_sample": True,
    }  # fmt: skip
    first, again = (client.generate(f"![]({CHICKEN})is this", **parameters) for _ in range(2))
    assert first == again and first["details"]["seed"] == 0
    assert 1 <= first["details"]["generated_tokens"] <= 10 and "is this" in first["generated_text"]


def test_load(client: Client) -> None:
    """`…_load`: four at once get the same answer."""
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(client.generate, f"User:![]({CHICKEN})Well? \nAssistant:", max_new_tokens=10) for _ in range(4)]
        answers = [each.result() for each in asked]
    assert {answer["generated_text"] for answer in answers} == {answers[0]["generated_text"]}


def test_generate_stream(client: Client) -> None:
    """A token per event; the last has the text and the details."""
    body = {"inputs": f"![]({CHICKEN})Well?", "parameters": {"max_new_tokens": 6, "details": True}}
    events = client.events("/generate_stream", body)
    assert [event["index"] for event in events] == list(range(1, 7))
    assert all(event["generated_text"] is None and event["details"] is None for event in events[:-1])
    assert events[-1]["details"]["generated_tokens"] == 6 and events[-1]["details"]["finish_reason"] == "length"
    assert events[-1]["generated_text"] == client.post("/generate", body)["generated_text"]


def test_chat(client: Client) -> None:
    """`mllama`, `qwen2_vl`, `gemma3`: `image_url` parts of one and of two images, an RGBA picture; usage counts their tokens."""
    none, one, two = client.chat(), client.chat(CHICKEN), client.chat(CHICKEN, RGBA)
    for answer in (none, one, two):
        assert answer["object"] == "chat.completion" and answer["model"] and answer["id"] and isinstance(answer["created"], int)
        [choice] = answer["choices"]
        assert choice["index"] == 0 and choice["message"]["role"] == "assistant" and isinstance(choice["message"]["content"], str)
        usage = answer["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert none["usage"]["prompt_tokens"] < one["usage"]["prompt_tokens"] < two["usage"]["prompt_tokens"]


def test_chat_stream(client: Client) -> None:
    """`…_simple_streaming`: chunks with deltas, one finish reason, usage at the end, and the text that the whole answer has."""
    body = message(CHICKEN) | {"max_tokens": 10, "temperature": 0.0, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last, done = client.events("/v1/chat/completions", body)
    assert done == "[DONE]" and last["choices"] == [] and last["usage"]["prompt_tokens"] > 0
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"][0]["finish_reason"]] != []
    assert text == client.chat(CHICKEN, temperature=0.0)["choices"][0]["message"]["content"]


@pytest.mark.parametrize("bad", WRONG, ids=list(WRONG.values()))
def test_bad_images(client: Client, bad: str) -> None:
    """One clear 422 on each route, in its own form, and the server goes on."""
    native = client.post("/generate", {"inputs": f"![]({bad})Well?"}, 422)
    assert native["error_type"] == "validation" and WRONG[bad].lower() in native["error"].lower()
    chat = client.post("/v1/chat/completions", message(CHICKEN, bad), 422)
    assert WRONG[bad].lower() in json.dumps(chat).lower()
    streamed = client.post("/v1/chat/completions", message(bad) | {"stream": True}, 422)
    assert WRONG[bad].lower() in json.dumps(streamed).lower()
    assert client.chat(CHICKEN)["usage"]["completion_tokens"] >= 1


def test_idefics(tmp_path: Path) -> None:
    """The first Idefics, of which transformers computes nothing without an image: the server does not start, and says why."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    tower = {"embed_dim": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    config = transformers.IdeficsConfig(vocab_size=len(tokenizer), **sizes, vision_config={**tower, "patch_size": 7})
    transformers.AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    done = run("serve", str(tmp_path), "--backend", "cpu")
    assert done.returncode == 1 and "model type 'idefics' cannot be run: " in done.stderr and "Traceback" not in done.stderr
