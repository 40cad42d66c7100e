"""There are no media: a part that is one is refused, a link in a text is text, and nothing is ever fetched, read or unpacked."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from typing import Any

import pytest

from tests.hostile.server import ServerUnderTest
from tests.hostile.urls import corpus
from tests.hostile.watch import Canary

CHUNK = 10


def image(url: str) -> dict[str, Any]:
    """OpenAI's part for an image."""
    return {"type": "image_url", "image_url": {"url": url}}


PARTS: dict[str, Any] = {
    "image_url": image,
    "image_url with detail": lambda url: {"type": "image_url", "image_url": {"url": url, "detail": "high"}, "text": "x"},
    "image_url as text": lambda url: {"type": "image_url", "image_url": url},
    "image": lambda url: {"type": "image", "image": url},
    "image with a source": lambda url: {"type": "image", "source": {"type": "url", "url": url}},
    "input_image": lambda url: {"type": "input_image", "image_url": url},
    "input_audio": lambda url: {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}},
    "audio_url": lambda url: {"type": "audio_url", "audio_url": {"url": url}},
    "video_url": lambda url: {"type": "video_url", "video_url": {"url": url}, "media_io_kwargs": {"fps": 10**9}},
    "file": lambda url: {"type": "file", "file": {"file_data": url, "filename": url}},
    "file by id": lambda url: {"type": "file", "file": {"file_id": url}},
    "input_file": lambda url: {"type": "input_file", "file_url": url},
    "image_embeds": lambda url: {"type": "image_embeds", "image_embeds": url},
    "no text": lambda url: {"type": "text", "image_url": {"url": url}},
    "no type": lambda url: {"image_url": {"url": url}},
    "null type": lambda url: {"type": None, "image_url": {"url": url}},
}


def chat(content: Any, role: str = "user") -> dict[str, Any]:
    """A conversation."""
    return {"messages": [{"role": role, "content": content}], "max_tokens": 1}


def carriers(content: Any) -> list[tuple[str, dict[str, Any]]]:
    """Every route that takes a conversation."""
    body = chat(content)
    return [
        ("/v1/chat/completions", body), ("/v1/chat/completions", {**body, "stream": True}), ("/chat_tokenize", body),
        ("/invocations", body), ("/vertex", {"instances": [{"inputs": "Hi"}, body]}),
        ("/v1/chat/completions", {**chat("x"), "messages": [*body["messages"], {"role": "user", "content": "Hi"}]}),
        ("/v1/chat/completions", chat(content, "tool")), ("/v1/chat/completions", chat(content, "system")),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", PARTS)
def test_every_kind_of_part_on_every_carrier(instance: ServerUnderTest, canary: Canary, kind: str) -> None:
    """A part that is no text is refused whatever its spelling, the route, the role and its place; nothing is fetched."""
    part = PARTS[kind](f"http://127.0.0.1:{canary.port}/x.png")
    with instance.watch.watching(instance.served.address) as watch:
        for content in ([part], [{"type": "text", "text": "What is this?"}, part]):
            for path, body in carriers(content):
                answer = instance.refuses(path, body)
                if kind.startswith("image_url") and kind != "image_url as text":
                    assert answer.status_code == 422 and "image modality is not supported" in answer.text
        assert watch.connections == []


def plain_carriers(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Every route that takes a text."""
    short: dict[str, Any] = {"max_new_tokens": 1}
    native = {"inputs": text, "parameters": short}
    infer = {"inputs": [{"name": "a", "data": [text]}], "outputs": [{"name": "b"}], "parameters": short}
    return [
        ("/generate", native), ("/", native), ("/generate_stream", native), ("/tokenize", native), ("/vertex", {"instances": [native]}),
        ("/v1/completions", {"prompt": [text], "max_tokens": 1}), ("/invocations", native), ("/v2/models/m/infer", infer),
        *((path, body) for path, body in carriers(text) if body.get("messages", [{}])[-1].get("role") != "tool"),
    ]  # fmt: skip


@pytest.mark.parametrize("start", range(0, 140, CHUNK))
def test_urls(instance: ServerUnderTest, canary: Canary, start: int) -> None:
    """As an image each of them is refused; in Markdown, in any text of any route, it is text: TGI fetched it (CVE-2026-0599)."""
    urls = corpus(canary.port)
    assert len(urls) >= 130 and len(set(urls)) == len(urls)
    with instance.watch.watching(instance.served.address) as watch:
        for place, url in enumerate(urls[start : start + CHUNK]):
            instance.refuses("/v1/chat/completions", chat([image(url)]))
            text = f"See ![]({url}) and <img src='{url}'>"[:500]
            for path, body in plain_carriers(text)[place % 3 :: 3]:
                assert instance.post(path, body).status_code == 200, (path, url)
            tokens = instance.post("/tokenize", {"inputs": text}).json()
            covered = {token["start"]: token["text"] for token in tokens[1:]}  # tokens may share a character
            assert "".join(covered.values()) == text
            templated = instance.post("/chat_tokenize", chat(text)).json()["templated_text"]
            assert text in templated
        assert watch.connections == []
        assert not [name for name in watch.files if "passwd" in name or "environ" in name or "id_rsa" in name]


def bombs() -> dict[str, bytes]:
    """Small files that are large inside."""
    huge = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + (30_000).to_bytes(4) * 2 + b"\x10\x06\0\0\0" + b"\0\0\0\0"
    return {
        "png": huge, "zip": b"PK\x03\x04" + zlib.compress(b"\0" * 10**6), "gzip": b"\x1f\x8b\x08" + zlib.compress(b"\0" * 10**6)[2:],
        "large": b"\0" * 1_200_000,
    }  # fmt: skip


@pytest.mark.parametrize("kind", bombs())
def test_nothing_is_unpacked(instance: ServerUnderTest, kind: str) -> None:
    """A data URL is as little an image as any; a compressed body is read up to the payload limit, and only gzip."""
    url = "data:image/png;base64," + base64.b64encode(bombs()[kind]).decode()
    for path, body in carriers([image(url)]):
        instance.refuses(path, body)
    large = json.dumps({"inputs": "x" * 10**8}).encode()
    packed = {
        "deflate": zlib.compress(large),
        "gzip, gzip": gzip.compress(gzip.compress(large)),
        "br": large[:99],
        "zstd": large[:99],
    }
    statuses = {
        encoding: instance.post("/generate", body, headers={"content-encoding": encoding}).status_code
        for encoding, body in {**packed, "gzip": gzip.compress(large), "x-gzip": bombs()[kind]}.items()
    }
    assert statuses == {**dict.fromkeys(packed, 415), "gzip": 413, "x-gzip": 400}
