"""Images at URLs: what is fetched, and what never is."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tgi_router import fetching
from tgi_router.errors import ValidationFailed
from tgi_router.fetching import ImageFetcher, is_public

from tests.router.conftest import Serve
from tests.router.test_images import chat, seeing
from tgi_core.config import Settings
from tgi_core.errors import StartupError

Answer = Callable[[str, socket.socket], None]
"""Answers one request, given its path."""
OK = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n"
PICTURE = b"\x89PNG picture"


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[int, list[str]]]:
    """A server on the loopback. Yields its port, and the paths that are asked for."""
    paths: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def one(stream: socket.socket) -> None:
            with stream, stream.makefile("rb") as lines:
                path = lines.readline().decode().split(" ")[1]
                while lines.readline() not in (b"\r\n", b""):
                    pass
                paths.append(path)
                try:
                    answer(path, stream)
                except OSError:
                    return  # the client has seen enough

        def accept() -> None:
            while True:
                try:
                    stream, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=one, args=(stream,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listening.getsockname()[1], paths
        finally:
            listening.shutdown(socket.SHUT_RDWR)


def sends(*parts: bytes) -> Answer:
    """One answer for all paths."""
    return lambda path, stream: stream.sendall(b"".join(parts))


def fetcher(port: int | None = None, max_bytes: int = 1000, **options: Any) -> ImageFetcher:
    """One that may connect to the loopback."""
    return ImageFetcher(["localhost", "*.localhost", "127.0.0.1"], max_bytes, port=port, **{"public": lambda _: True, **options})


@pytest.mark.parametrize(
    "head",
    [
        OK + b"Content-Length: 12\r\n\r\n" + PICTURE,
        OK + b"\r\n" + PICTURE,
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\n" + PICTURE[:5] + b"\r\n7\r\n" + PICTURE[5:] + b"\r\n0\r\n\r\n",
    ],
)
async def test_an_image(head: bytes) -> None:
    """However its end is marked; path and query are asked for."""
    with serving(sends(head)) as (port, paths):
        assert await fetcher(port).fetch("http://localhost/a%20b.png?c=d#e") == PICTURE
        assert paths == ["/a%20b.png?c=d"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (OK + b"Content-Length: 1001\r\n\r\n", "1001 bytes exceeds maximum allowed size of 1000 bytes"),
        (OK + b"\r\n" + bytes(5000), "exceeds maximum allowed size of 1000 bytes"),
        (OK + b"Content-Length: 500\r\n\r\n" + PICTURE, "connection broke|IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>", "not an image but 'text/html'"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + PICTURE, "not an image but 'text/plain'"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "responded with 404"),
        (b"HTTP/1.1 302 Found\r\nLocation: /again\r\n\r\n", "more than 3 redirects"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere.example/\r\n\r\n", "not on a host"),
        (b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n", "not on a host"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://localhost:9/\r\n\r\n", "port 9 is not allowed"),
        (b"nonsense\r\n\r\n", "BadStatusLine"),
        (b"", "RemoteDisconnected"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", "LineTooLong"),
    ],
)
async def test_bad_answers(answer: bytes, why: str) -> None:
    """Each is refused in one line."""
    with serving(sends(answer)) as (port, _), pytest.raises(ValidationFailed, match=why) as caught:
        await fetcher(port).fetch("http://localhost/a.png?secret=1")
    assert "Could not fetch image" in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize("part", [b"H", OK + b"\r\n" + b"x"])
async def test_slow_servers(part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends a byte now and then is given up in time, in its head and in its body."""
    monkeypatch.setattr(fetching, "SECONDS", 0.3)
    ended = threading.Event()

    def drip(path: str, stream: socket.socket) -> None:
        stream.sendall(part)
        while not ended.wait(0.02):
            stream.sendall(b"x")

    with serving(drip) as (port, _), pytest.raises(ValidationFailed, match="takes longer"):
        await fetcher(port, max_bytes=1 << 30).fetch("http://localhost/")
    ended.set()


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/a.png",
        "http://evil-localhost/",
        "http://localhost.evil.example/",
        "http://user@localhost/",
        "http://localhost@example.com/",
        "http://localhost:22/",
        "http://[::1]/",
        "http://2130706433/",
        "http:///a.png",
        "https://local\thost.example/",
        "http://localhost\r\nX: y/",
    ],
)
async def test_urls_that_are_not_allowed(url: str) -> None:
    """No connection is made."""
    with serving(sends(OK, b"\r\n")) as (port, paths):
        with pytest.raises(ValidationFailed):
            await fetcher(port).fetch(url)
        assert paths == []


async def test_addresses_that_are_not_public() -> None:
    """An allowed name that resolves to this machine, or to it among others, is refused before a connection is made."""
    with serving(sends(OK, b"\r\n")) as (port, paths):
        for url in ("http://localhost/", "http://127.0.0.1/"):
            with pytest.raises(ValidationFailed, match="address that is not public"):
                await fetcher(port, public=is_public).fetch(url)
        assert paths == []


async def test_dns_rebinding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is resolved once: the connection goes to the address that was checked."""
    found, real = [], socket.getaddrinfo

    def resolve(host: str, port: int, *args: Any, **options: Any) -> Any:
        found.append(host)
        return real("127.0.0.1" if len(found) == 1 or host == "127.0.0.1" else "127.0.0.99", port, *args, **options)

    with serving(sends(OK, b"Content-Length: 12\r\n\r\n", PICTURE)) as (port, _):
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        assert await fetcher(port).fetch("http://a.localhost/") == PICTURE
    assert [host for host in found if host != "127.0.0.1"] == ["a.localhost"]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("2002:7f00:1::", False),
    ],
)
def test_public_addresses(address: str, expected: bool) -> None:
    """Also those that contain another one."""
    assert is_public(address) == expected


def test_a_server_that_fetches(serve: Serve) -> None:
    """An allowed host with an address that is not public and other hosts are refused; `data:` URLs still work."""
    served, generator = seeing(serve, allowed_media_domains=("localhost",))
    for url, why in {
        "http://localhost/a.png": "not public",
        "http://example.com/": "not on a host",
        "ftp://localhost/": "`data:`",
    }.items():
        answer = chat(served, {"type": "image_url", "image_url": {"url": url}})
        assert answer.status_code == 422 and why in answer.json()["error"]["message"]
    assert chat(served, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}).status_code == 200
    assert [seen.images for seen in generator.seen] == [(b"\0\0\0",)]


@pytest.mark.parametrize("domain", ["http://a.example", "a.example/x", "*", "a b", "", "a.*.example", "a.example:80"])
def test_domains_are_hosts(domain: str) -> None:
    """Anything else is refused at start."""
    with pytest.raises(StartupError, match="--allowed-media-domains"):
        Settings(allowed_media_domains=(domain,))
    Settings(allowed_media_domains=("a.example", "*.b.example", "localhost"))
