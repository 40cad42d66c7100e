"""Requests that HTTP lets one write and no server should take, with the status that each gets."""

from __future__ import annotations

PAYLOAD_LIMIT = 10_000
"""Of the server that they are sent to, in bytes."""

HEAD = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
BODY = b'{"inputs":"Hi"}'

REFUSED = {
    "no host": (b"GET /info HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET /info HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", 400),
    "host with a path": (b"GET /info HTTP/1.1\r\nhost: a/metrics?x=\r\n\r\n", 400),
    "host with a user": (b"GET /info HTTP/1.1\r\nhost: a@b\r\n\r\n", 400),
    "chunked and length": (HEAD + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n", 400),
    "length and chunked": (HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "two lengths": (HEAD + b"content-length: 15\r\ncontent-length: 15\r\n\r\n" + BODY, 400),
    "two lengths in one": (HEAD + b"content-length: 15, 15\r\n\r\n" + BODY, 400),
    "signed length": (HEAD + b"content-length: +15\r\n\r\n" + BODY, 400),
    "coded and chunked": (HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    "chunked twice": (HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunked in 1.0": (HEAD.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "not quite chunked": (HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    "bare line feeds": (b"GET /info HTTP/1.1\nhost: x\n\n", 400),
    "bare line feed in a header": (b"GET /info HTTP/1.1\r\nhost: x\nx: y\r\n\r\n", 400),
    "bare carriage return": (b"GET /info HTTP/1.1\r\nhost: x\rx: y\r\n\r\n", 400),
    "folded header": (b"GET /info HTTP/1.1\r\nhost: x\r\n y\r\n\r\n", 400),
    "space before a colon": (b"GET /info HTTP/1.1\r\nhost : x\r\n\r\n", 400),
    "zero byte": (b"GET /info HTTP/1.1\r\nhost: x\r\nx: a\0b\r\n\r\n", 400),
    "version 0.9": (b"GET /info\r\n\r\n", 400),
    "version 2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "no target": (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "line feed after a chunk's size": (HEAD + b"transfer-encoding: chunked\r\n\r\nf\n" + BODY + b"\r\n0\r\n\r\n", 400),
    "chunk without end": (HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\n", 400),
    "too many headers": (b"GET /info HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 10_000 + b"\r\n", 431),
    "long header": (b"GET /info HTTP/1.1\r\nhost: x\r\na: " + b"b" * 1_000_000 + b"\r\n\r\n", 431),
    "long header without an end": (b"GET /info HTTP/1.1\r\nhost: x\r\na: " + b"b" * 100_000, 431),
    "long target": (b"GET /" + b"b" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 431),
    "empty lines": (b"\r\n" * 50_000, 431),
    "large body": (HEAD + b"content-length: 20000\r\n\r\n" + b" " * 20_000, 413),
    "large body to come": (HEAD + b"content-length: 20000\r\n\r\n", 413),
    "large chunked body": (HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"4e20\r\n" + b" " * 20_000 + b"\r\n", 413),
    "large chunk extension": (HEAD + b"transfer-encoding: chunked\r\n\r\n3;a=" + b"b" * 600_000, 413),
    "deep json": (HEAD + b"content-length: 10000\r\n\r\n" + b"[" * 10_000, 400),
    "large body in small chunks": (HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 500_000, 413),
}  # fmt: skip
