"""Images in requests, as clients send them: what reaches the shard, and what is refused."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest
from tgi_router import images
from tgi_router.templates import ChatTemplates

from tests.router.conftest import Serve
from tests.router.scripted import EVERYTHING, ScriptedGenerator
from tests.router.serving import Served
from tgi_core.backend import Feature
from tgi_core.media.digest import image_digest
from tgi_core.media.prompts import MultimodalPrompt
from tgi_core.scheduler import Limits
from tgi_core.scheduler.prefix import ImageSpan

SEEING = {"capabilities": replace(EVERYTHING, features=EVERYTHING.features | {Feature.MEDIA})}
PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{% if p.type == 'image' %}[IMG]{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endfor %}"
)
BOTH = "{% for m in messages %}{% if m.content is string %}{{ m.content }}!{% else %}" + PARTS[25:-12] + "{% endif %}{% endfor %}"


def url(data: bytes, kind: str = "image/png") -> str:
    """A `data:` URL."""
    return f"data:{kind};base64,{b64encode(data).decode()}"


def picture(data: bytes) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "image_url", "image_url": {"url": url(data)}}


def text(words: str) -> dict[str, Any]:
    """Another."""
    return {"type": "text", "text": words}


def seeing(serve: Serve, template: str = PARTS, **settings: Any) -> tuple[Served, ScriptedGenerator]:
    """A server whose model sees images."""
    changes = {"chat_templates": ChatTemplates({"default": template})}
    return serve(changes=changes, scripted=SEEING, **settings)


def chat(served: Served, *parts: Any, path: str = "/v1/chat/completions", **more: Any) -> Any:
    """A chat of one message."""
    return served.client.post(path, json={"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 4, **more})


def test_a_chat_with_images(serve: Serve) -> None:
    """The template gets parts; the shard gets its text and the images, in order; the request has them and says where they are."""
    served, generator = seeing(serve)
    answer = chat(served, picture(b"one"), text("and "), picture(b"two"), text("?"))
    assert answer.status_code == 200 and answer.json()["usage"]["prompt_tokens"] == 9
    assert generator.seen == [MultimodalPrompt(("<user>[IMG]and [IMG]?",), (b"one", b"two"), special=False)]
    request = generator.submitted.get()
    assert request.images == (b"one", b"two") and request.request.media == ()
    assert request.image_spans == (ImageSpan(1, 4, image_digest(b"one")), ImageSpan(5, 8, image_digest(b"two")))


@pytest.mark.parametrize(("template", "expected"), [(PARTS, "<user>Hi"), (BOTH, "Hi!")])
def test_messages_of_text_alone(serve: Serve, template: str, expected: str) -> None:
    """They are strings for templates that take strings, and parts for those that know only parts."""
    served, generator = seeing(serve, template)
    tokenized = chat(served, text("Hi"), path="/chat_tokenize").json()
    assert tokenized["templated_text"] == expected and generator.seen == []


FIRST = "{% if messages[0].role == 'system' %}{{ messages[0]['content'][0]['text'] }}|{% endif %}" + PARTS


def test_templates_of_parts_get_parts_of_all_messages(serve: Serve) -> None:
    """The system's message, past calls without content, and answers, which are all of text."""
    served, generator = seeing(serve, FIRST)
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [picture(b"one")]},
        {"role": "assistant", "content": "A cat"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "user", "content": "Sure?"},
    ]
    assert served.client.post("/v1/chat/completions", json={"messages": messages}).status_code == 200
    [text] = generator.seen[0].texts
    assert text.startswith("Be brief.|<system>Be brief.<user>[IMG]<assistant>A cat<assistant>") and text.endswith("<user>Sure?")
    messages[-1] = {"role": "assistant", "content": "A ca"}
    assert served.client.post("/v1/chat/completions", json={"messages": messages}).status_code == 200
    assert generator.seen[1].texts[0].endswith("<assistant>A ca")


@pytest.mark.parametrize("path", ["/generate", "/", "/generate_stream"])
def test_markdown(serve: Serve, path: str) -> None:
    """TGI's form: images in the text, which the shard puts between its parts. A link of another kind stays text."""
    served, generator = seeing(serve)
    inputs = f"See ![a cat]({url(b'one')}) and ![]({url(b'two', 'image/jpeg')})![x](local.png)"
    answer = served.client.post(path, json={"inputs": inputs})
    assert answer.status_code == 200
    assert generator.seen == [MultimodalPrompt(("See ", " and ", "![x](local.png)"), (b"one", b"two"), special=True)]


def test_a_model_of_text_alone(serve: Serve) -> None:
    """Images in messages are refused as TGI does, and Markdown stays text."""
    served, generator = serve()
    assert chat(served, picture(b"one")).json()["error"]["message"] == "Input validation error: image modality is not supported"
    assert served.client.post("/generate", json={"inputs": "![](data:image/png;base64,AAAA)"}).status_code == 200
    assert generator.seen == []


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("http://127.0.0.1/cat.png", "this server fetches none"),
        ("https://example.com/cat.png", "this server fetches none"),
        ("file:///etc/passwd", "this server fetches none"),
        ("", "this server fetches none"),
        ("data:image/png,AAAA", "in base64"),
        ("data:image/png;base64,A", "not valid base64"),
        ("data:image/png;base64,???", "not valid base64"),
        ("data:image/png;base64,", "an image is empty"),
        ("data:;base64,AAAA", "type of images"),
        ("data:text/html;base64,AAAA", "type of images"),
        ("data:" + "x" * 500 + ";base64,AAAA", "type of images"),
    ],
)
def test_refused_urls(serve: Serve, given: str, why: str) -> None:
    """Each says why; nothing reaches the shard."""
    served, generator = seeing(serve)
    answer = chat(served, {"type": "image_url", "image_url": {"url": given}})
    assert answer.status_code == 422 and why in answer.json()["error"]["message"] and len(answer.text) < 400
    assert generator.seen == []


def test_other_rules(serve: Serve) -> None:
    """Truncation, too many images, special tokens in messages, and prompts without text."""
    served, generator = seeing(serve, tokenizer_config_path=None)
    image = f"![]({url(b'one')})"

    def generate(inputs: str, **parameters: Any) -> Any:
        return served.client.post("/generate", json={"inputs": inputs, "parameters": parameters})

    assert "`truncate`" in generate(image, truncate=3).json()["error"]
    assert "up to 32 images. Given: 33" in generate(image * 33).json()["error"]
    assert "up to 32 images. Given: 33" in chat(served, *[picture(b"one")] * 33).text
    assert "special token" in chat(served, picture(b"one"), text("<|endoftext|>")).text
    assert "cannot be shown as tokens" in chat(served, picture(b"one"), path="/chat_tokenize").text
    assert generator.seen == []
    assert generate(image).status_code == 200


def test_the_size_of_all_images(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is limited, since they are kept while their request runs."""
    served, generator = seeing(serve)
    monkeypatch.setattr(images, "MOST_BYTES", 5)
    assert chat(served, picture(b"one"), picture(b"two")).json()["error"]["message"].endswith("up to 5 bytes in all")
    assert chat(served, picture(b"three")).status_code == 200 and len(generator.seen) == 1


def test_an_image_longer_than_a_step(serve: Serve) -> None:
    """Where images run whole, it is refused before it is queued, with the limit."""
    limits = Limits(60, 64, max_image_tokens=2)
    served, generator = serve(changes={"chat_templates": ChatTemplates({"default": PARTS})}, scripted=SEEING | {"limits": limits})
    answer = chat(served, picture(b"one"), text("?"))
    assert answer.status_code == 422 and "image 1 must have at most 2 tokens" in answer.json()["error"]["message"]
    assert generator.submitted.empty()


def test_parts_of_other_kinds_are_refused_by_name(serve: Serve) -> None:
    """Sound and video."""
    served, _ = seeing(serve)
    for kind in ("input_audio", "video_url"):
        answer = chat(served, {"type": kind, kind: {}})
        assert answer.status_code == 422 and f"parts of type `{kind}` are not supported" in answer.text


SOURCES = (
    {"type": "base64", "media_type": "image/png", "data": b64encode(b"one").decode()},
    {"type": "url", "url": url(b"one")},
)


@pytest.mark.parametrize("source", SOURCES)
def test_messages_with_images(serve: Serve, source: dict[str, str]) -> None:
    """Anthropic's form; the tokens of images are counted."""
    served, generator = seeing(serve)
    content = [{"type": "image", "source": source}, {"type": "text", "text": "and?"}]
    body = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": content}]}
    assert served.client.post("/v1/messages", json=body).json()["usage"]["input_tokens"] == 5
    assert served.client.post("/v1/messages/count_tokens", json=body).json() == {"input_tokens": 5}
    assert generator.seen == [MultimodalPrompt(("<user>[IMG]and?",), (b"one",), special=False)] * 2
    wrong = {**body, "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]}
    assert "source of the type `file`" in served.client.post("/v1/messages", json=wrong).text


def test_responses_with_images(serve: Serve) -> None:
    """The form of OpenAI's Responses API."""
    served, generator = seeing(serve)
    content = [{"type": "input_image", "image_url": url(b"one"), "detail": "low"}, {"type": "input_text", "text": "and?"}]
    answer = served.client.post("/v1/responses", json={"input": [{"role": "user", "content": content}]})
    assert answer.status_code == 200 and answer.json()["usage"]["input_tokens"] == 5
    assert generator.seen == [MultimodalPrompt(("<user>[IMG]and?",), (b"one",), special=False)]
