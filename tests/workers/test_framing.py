"""Frames arrive whole, in order and within their limit, however the stream is cut."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tgi_core.framing import HEAD, Frames, FrameSocket, FrameTooLong, frame

PAYLOADS = [b"", b"a", b"x" * 70_000, bytes(range(256)), b"y" * (3 << 20)]


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("size", [1, 3, 4, 5, 100, 1 << 20])
def test_pieces_of_any_size(size: int) -> None:
    """The same payloads come out whatever pieces they arrive in."""
    payloads = [payload[:1000] for payload in PAYLOADS]
    stream, frames, found = b"".join(map(frame, payloads)), Frames(), []
    for start in range(0, len(stream), size):
        frames.feed(stream[start : start + size])
        while (payload := frames.take()) is not None:
            found.append(payload)
    assert found == payloads
    assert not frames


def test_a_socket(ends: tuple[socket.socket, socket.socket]) -> None:
    """Several frames in one send, and large ones, are received one by one; a closed socket is the end."""
    ours, theirs = ends

    def send() -> None:
        with theirs:
            theirs.sendall(b"".join(map(frame, PAYLOADS)))
            for payload in PAYLOADS:
                FrameSocket(theirs).send(payload)

    sender = threading.Thread(target=send)
    sender.start()
    receiver = FrameSocket(ours)
    assert [receiver.receive() for _ in range(2 * len(PAYLOADS))] == PAYLOADS * 2
    with pytest.raises(EOFError):
        receiver.receive()
    sender.join()


@pytest.mark.parametrize("cut", [1, 3, 4, 6])
def test_an_end_within_a_frame(ends: tuple[socket.socket, socket.socket], cut: int) -> None:
    """A frame that is cut off is never taken for a whole one."""
    ours, theirs = ends
    theirs.sendall(frame(b"1234")[:cut])
    theirs.close()
    with pytest.raises(EOFError):
        FrameSocket(ours).receive()


def test_a_limit(ends: tuple[socket.socket, socket.socket]) -> None:
    """A payload above the limit is refused as soon as its length is there; one at the limit is not."""
    ours, theirs = ends
    theirs.sendall(frame(b"1234") + HEAD.pack(5))
    receiver = FrameSocket(ours)
    assert receiver.receive(limit=4) == b"1234"
    with pytest.raises(FrameTooLong, match="5 bytes"):
        receiver.receive(limit=4)


def test_a_timeout(ends: tuple[socket.socket, socket.socket]) -> None:
    """A frame that does not arrive in time raises TimeoutError; what arrived of it is kept, and the socket blocks again."""
    ours, theirs = ends
    receiver = FrameSocket(ours)
    theirs.sendall(frame(b"1234")[:5])
    with pytest.raises(TimeoutError):
        receiver.receive(timeout_s=0.01)
    assert ours.gettimeout() is None
    theirs.sendall(frame(b"1234")[5:])
    assert receiver.receive(timeout_s=60) == b"1234"
