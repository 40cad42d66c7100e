"""Checks of request heads, and the responses to rejected ones."""

from __future__ import annotations

import re
from collections.abc import Sequence

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

MAX_HEAD_BYTES = 1 << 16
MAX_HEADERS = 100

_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")


class Refused(Exception):
    """A request was rejected while being parsed. Ends its connection."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status

    @property
    def answer(self) -> bytes:
        """The complete response, with its head."""
        text = str(self).encode()
        again = b"retry-after: 1\r\nretry-after-ms: 1000\r\n" if self.status == 503 else b""
        headers = b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (
            len(text),
            text,
        )
        return STATUS_LINE[self.status] + again + headers


def too_large() -> Refused:
    """Return the rejection of a head that exceeds the limits, complete or not."""
    return Refused(431, "The request's head is too large")


def check_head(url: bytes, headers: Sequence[tuple[bytes, bytes]], version: str) -> None:
    """Check the limits of a head and reject ambiguities that two servers could parse differently. `headers` have lower-case names.
    Raises Refused."""
    hosts, size = 0, len(url)
    for name, value in headers:
        size += len(name) + len(value) + 4
        if name == b"host":
            hosts += 1
            if _HOST.fullmatch(value) is None:
                raise Refused(400, "Host is not valid")
        elif name == b"transfer-encoding" and (value.lower() != b"chunked" or version != "1.1"):
            raise Refused(400, "Transfer-Encoding must be chunked")
    if size > MAX_HEAD_BYTES or len(headers) > MAX_HEADERS:
        raise too_large()
    if hosts > 1 or (not hosts and version == "1.1"):
        raise Refused(400, "Host must be given once")
    if version not in ("1.1", "1.0"):
        raise Refused(400, "Only HTTP/1.1 is spoken")
