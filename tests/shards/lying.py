"""Shards that lie: real ones whose answers are changed on the wire, one lie at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from tests.grpc.shards import UpstreamService, model
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.server.grpc_host import ShardHost
from tgi_core.server.grpc_service import ShardService
from tgi_core.tokenizer import Tokenizer

GARBAGE = b"\xff\xff\xff\xff"
"""No message."""

Tell = Callable[[Any, Any], Any]
"""From a request and its true answer to what is sent in its place: a message, bytes, a list of several; None if this is no
occasion to lie. A changed answer may be the true one's own object."""


@dataclass(frozen=True, slots=True)
class Lie:
    """One way to lie, in answers to `method`. `says` is a regular expression of the reason that the router gives."""

    name: str
    method: str
    tell: Tell
    says: str

    def __str__(self) -> str:
        return self.name


class Hang:
    """Sent in place of an answer: nothing ever is."""


class Ends:
    """Sent in place of an answer: the stream ends as if all had been said."""


class Liar:
    """Tells one lie at the first occasion after each `arm`, or at every one."""

    def __init__(self) -> None:
        self.told = 0
        self._lie: Lie | None = None
        self._forever = False
        self._released, self._going = threading.Event(), threading.Event()
        self._going.set()

    @contextmanager
    def held(self) -> Generator[None, None, None]:
        """Answer to nobody's steps while the block runs."""
        self._going.clear()
        try:
            yield
        finally:
            self._going.set()

    def arm(self, lie: Lie, forever: bool = False) -> None:
        """Lie the next time, or each time."""
        self.told, self._lie, self._forever = 0, lie, forever

    def release(self) -> None:
        """Let go of what hangs."""
        self._released.set()

    def answers(self, method: str, request: Any, truth: Any) -> Iterator[bytes]:
        """What is sent."""
        if method in ("Steps", "Prefill", "Decode"):
            self._going.wait(60)
        lie = self._lie
        told = lie.tell(request, truth) if lie is not None and lie.method == method else None
        if told is None:
            yield truth.SerializeToString()
            return
        self.told += 1
        if not self._forever:
            self._lie = None
        if told is Hang:
            self._released.wait(120)
            return
        for one in told if isinstance(told, list) else [told]:
            if one is Ends:
                return
            yield one if isinstance(one, bytes) else one.SerializeToString()


class _Handlers(grpc.GenericRpcHandler):
    """Those of a shard, with a liar between them and the wire."""

    def __init__(self, inner: grpc.GenericRpcHandler, liar: Liar) -> None:
        self._inner, self._liar = inner, liar

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The handler of a method."""
        handler: Any = self._inner.service(handler_call_details)
        method = handler_call_details.method.rpartition("/")[2]
        if handler is None:
            return None
        if handler.request_streaming:
            return handler._replace(stream_stream=self._stream(handler.stream_stream, method), response_serializer=None)
        return handler._replace(unary_unary=self._unary(handler.unary_unary, method), response_serializer=None)

    def _unary(self, answer: Any, method: str) -> Any:
        def tell(request: Any, context: grpc.ServicerContext) -> bytes:
            return next(self._liar.answers(method, request, answer(request, context)), b"")

        return tell

    def _stream(self, answers: Any, method: str) -> Any:
        def tell(requests: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
            last: list[Any] = [None]

            def heard() -> Iterator[Any]:
                for last[0] in requests:
                    yield last[0]

            for truth in answers(heard(), context):
                told = list(self._liar.answers(method, last[0], truth))
                yield from told
                if not told:
                    return

        return tell


@contextmanager
def lying(tokenizer: Tokenizer, path: Path, upstream_tgi: bool, **options: Any) -> Generator[Liar, None, None]:
    """A shard on the toy model behind a unix socket: of ours, or as TGI's are."""
    host, liar = ShardHost(), Liar()
    server = grpc.server(ThreadPoolExecutor(16))
    service = UpstreamService(host) if upstream_tgi else ShardService(host)
    server.add_generic_rpc_handlers(tuple(_Handlers(handler, liar) for handler in service.handlers()))
    service.url = f"unix://{path}"
    server.add_insecure_port(f"unix:{path}")
    server.start()
    host.open(lambda: model(tokenizer, **options))
    try:
        yield liar
    finally:
        liar.release()
        server.stop(None).wait()
        assert host.close(60)


def rows(least: int, change: Callable[[Any], Any]) -> Tell:
    """A lie about the rows of a step, told once it has so many of them."""

    def tell(request: pb.Turn, truth: pb.TurnResult) -> Any:
        step = truth.result
        if len(step.request_ids) < least or step.finished or step.prompts or step.candidates:
            return None
        told = change(step)
        return truth if told is None else told

    return tell
