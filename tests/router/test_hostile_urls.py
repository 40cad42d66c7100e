"""Image URLs that mean harm: one clear 4xx each, nothing fetched that the policy forbids, and no other answer changed."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tgi_router import fetching, images
from tgi_router.fetching import ImageFetcher

from tests.router.conftest import Serve
from tests.router.test_fetching import OK, PICTURE, serving
from tests.router.test_images import chat, picture, seeing, text

GOOD = OK + b"Content-Length: 12\r\n\r\n" + PICTURE


def moved(target: str) -> bytes:
    """A redirect."""
    return f"HTTP/1.1 302 Found\r\nLocation: {target}\r\n\r\n".encode()


ANSWERS: dict[str, tuple[bytes, str]] = {
    "redirect to loopback": (moved("http://127.0.0.1:{canary}/x.png"), "not on a host"),
    "redirect to a name of loopback": (moved("http://canary.localhost/x.png"), "not on a host"),
    "redirect to another port": (moved("http://localhost:{canary}/x.png"), "port {canary} is not allowed"),
    "redirect to IPv6 loopback": (moved("http://[::1]/x.png"), "not on a host"),
    "redirect to metadata": (moved("http://169.254.169.254/latest/meta-data/"), "not on a host"),
    "redirect to a decimal address": (moved("http://2130706433:{canary}/"), "not on a host"),
    "redirect to a file": (moved("file:///etc/passwd"), "not on a host"),
    "redirect to data": (moved("data:image/png;base64,AAAA"), "not on a host"),
    "redirect with a user": (moved("http://localhost@127.0.0.1:{canary}/"), "not on a host"),
    "redirect to itself": (moved("/again"), "more than 3 redirects"),
    "redirect to nothing": (b"HTTP/1.1 302 Found\r\n\r\n", "Could not fetch image"),
    "redirect with a header inside": (moved("http://localhost/%0d%0aHost:%20127.0.0.1"), "Could not fetch image"),
    "rebinding": (moved("http://rebinding.localhost/x.png"), "address that is not public"),
    "wrong type": (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>", "not an image"),
    "SVG": (b"HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\n\r\n<svg/>", "not an image"),
    "too long by its head": (OK + b"Content-Length: 99999999999\r\n\r\n", "exceeds maximum allowed size"),
    "shorter than its head says": (OK + b"Content-Length: 500\r\n\r\n" + PICTURE, "IncompleteRead|connection broke"),
    "nothing": (b"", "RemoteDisconnected"),
    "not HTTP": (b"\x00\x01SSH-2.0\r\n\r\n", "BadStatusLine"),
    "404": (b"HTTP/1.1 404 Not Found\r\n\r\n", "responded with 404"),
    "an endless header": (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000, "LineTooLong"),
}
"""What a host that is allowed answers, and why that is refused."""


def endless(stream: socket.socket) -> None:
    """A body without an end."""
    stream.sendall(OK + b"\r\n")
    while True:
        stream.sendall(bytes(1 << 16))


def slow(ended: threading.Event, head: bytes, stream: socket.socket) -> None:
    """A byte now and then."""
    stream.sendall(head)
    while not ended.wait(0.02):
        stream.sendall(b"x")


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """`rebinding.localhost` has the address that may be reached, and one that may not, which a second question would find alone."""
    real = socket.getaddrinfo

    def resolve(host: str, port: Any, *args: Any, **options: Any) -> Any:
        found = real("127.0.0.1" if host.endswith("localhost") else host, port, *args, **options)
        return [*found, *real("127.0.0.99", port, *args, **options)] if host == "rebinding.localhost" else found

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def asked(serve: Serve, monkeypatch: pytest.MonkeyPatch, answer: Callable[[str, socket.socket], None], why: str) -> None:
    """A URL on an allowed host whose server gives this answer, in all forms of requests, among sound requests."""
    with serving(lambda path, stream: stream.sendall(GOOD)) as (canary, reached):

        def answered(path: str, stream: socket.socket) -> None:
            stream.sendall(GOOD) if path == "/good.png" else answer(str(canary), stream)

        with serving(answered) as (port, paths):
            opened = partial(ImageFetcher, public=lambda address: address == "127.0.0.1", port=port)
            monkeypatch.setattr(images, "ImageFetcher", opened)
            served, generator = seeing(
                serve, allowed_media_domains=("localhost", "rebinding.localhost"), max_image_fetch_size=4000
            )
            good = {"type": "image_url", "image_url": {"url": "http://localhost/good.png"}}
            bad = {"type": "image_url", "image_url": {"url": "http://localhost/bad.png?secret=1"}}
            before = chat(served, good, picture(b"two"), text("?"), temperature=0).json()["choices"]
            for body in (chat(served, bad), chat(served, good, bad), chat(served, bad, stream=True)):
                assert body.status_code == 422 and json.loads(body.text)["error"]["message"].count("\n") == 0
                assert re.search(why.replace("{canary}", str(canary)), body.text), body.text
                assert "secret" not in body.text
            native = served.client.post("/generate", json={"inputs": "![](http://localhost/bad.png)Well?"})
            assert native.status_code == 422 and native.json()["error_type"] == "validation"
            assert chat(served, good, picture(b"two"), text("?"), temperature=0).json()["choices"] == before
            assert len(generator.seen) == 2 and all(seen.images[0] == PICTURE for seen in generator.seen)
            assert reached == [] and set(paths) <= {
                "/good.png",
                "/bad.png?secret=1",
                "/bad.png",
                "/again",
                "/%0d%0aHost:%20127.0.0.1",
            }


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.usefixtures("resolved")
def test_what_hosts_answer(serve: Serve, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Redirects to where the server must not connect, rebinding, and answers that are no image."""
    data, why = ANSWERS[kind]
    asked(serve, monkeypatch, lambda canary, stream: stream.sendall(data.replace(b"{canary}", canary.encode())), why)


@pytest.mark.usefixtures("resolved")
def test_an_endless_body(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read up to the limit."""
    asked(serve, monkeypatch, lambda canary, stream: endless(stream), "exceeds maximum allowed size of 4000 bytes")


@pytest.mark.parametrize("head", [b"H", OK + b"Content-Length: 3000\r\n\r\n"], ids=["head", "body"])
@pytest.mark.usefixtures("resolved")
def test_a_slow_server(serve: Serve, monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    """It is given up in time."""
    monkeypatch.setattr(fetching, "SECONDS", 0.5)
    ended = threading.Event()
    asked(serve, monkeypatch, lambda canary, stream: slow(ended, head, stream), "takes longer")
    ended.set()
