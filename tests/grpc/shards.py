"""Shards on the reference backend: in process, behind a socket, and as a TGI shard that knows nothing of ours."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from tests.grpc.described import OURS
from tests.scheduler.device import quiet
from tests.scheduler.running import running_loop
from tgi_core.backend import Capabilities, WarmupPlan, hookimpl
from tgi_core.backend.reference import ReferenceSession
from tgi_core.backend.session import Session
from tgi_core.client.base import ShardClient
from tgi_core.client.connecting import connect
from tgi_core.client.local import LocalShard
from tgi_core.model_files import DEMO
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.scheduler import SchedulerLoop
from tgi_core.server.grpc_host import Model, ShardHost
from tgi_core.server.grpc_server import ShardServer
from tgi_core.server.grpc_service import ShardService
from tgi_core.server.model_server import ModelServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import ShardInfo

PLAN = WarmupPlan(max_rows=8, max_row_tokens=64, num_blocks=32, block_size=4)


class Blocks4(ReferenceSession):
    """The toy model with blocks of four tokens, where nobody asks for others."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Those of the toy model."""
        return replace(super().capabilities(), block_sizes=(4, 16))


def model(tokenizer: Tokenizer, **options: Any) -> Model:
    """An open reference model; `session_class` is another than `Blocks4`."""
    session_class: type[ReferenceSession] = options.pop("session_class", Blocks4)
    session = Session(session_class(tokenizer.vocab_size, 512, **options), "reference")
    info = ShardInfo("toy", "reference", "none", "none", (1, 0), session.capabilities())
    return Model(ModelServer(session, tokenizer, info, options.get("masks")), tokenizer)


@contextmanager
def served(tokenizer: Tokenizer, folder: Path, **options: Any) -> Generator[ShardServer, None, None]:
    """A shard behind a unix socket."""
    host = ShardHost()
    server = ShardServer(host, f"unix:{folder / 'shard'}")
    server.start()
    host.open(lambda: model(tokenizer, **options))
    try:
        yield server
    finally:
        server.stop()
        assert host.close(60)


class UpstreamService(ShardService):
    """A TGI shard: what it sends has nothing of ours, and it refuses what has."""

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """The methods of v3 without the stream."""
        return tuple(_WithoutSteps(handler) for handler in super().handlers())

    def _info(self, request: pb.InfoRequest, context: grpc.ServicerContext) -> pb.InfoResponse:
        return stripped(super()._info(request, context))

    def _health(self, request: pb.HealthRequest, context: grpc.ServicerContext) -> pb.HealthResponse:
        return stripped(super()._health(request, context))

    def _warmup(self, request: pb.WarmupRequest, context: grpc.ServicerContext) -> pb.WarmupResponse:
        return super()._warmup(refusing_ours(request), context)

    def _prefill(self, request: pb.PrefillRequest, context: grpc.ServicerContext) -> pb.PrefillResponse:
        for item in request.batch.requests:  # what TGI's shard cannot do without
            positions = len(self._host.model().tokenizer.encode(item.inputs, item.add_special_tokens).ids)
            assert len(item.slots) == positions + item.stopping_parameters.max_new_tokens - 1
            assert len(item.blocks) * 4 >= len(item.slots) and {slot // 4 for slot in item.slots} == set(item.blocks)
        return super()._prefill(refusing_ours(request), context)

    def _decode(self, request: pb.DecodeRequest, context: grpc.ServicerContext) -> pb.DecodeResponse:
        return super()._decode(refusing_ours(request), context)


class _WithoutSteps(grpc.GenericRpcHandler):
    def __init__(self, inner: grpc.GenericRpcHandler) -> None:
        self._inner = inner

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return None if handler_call_details.method.endswith("/Steps") else self._inner.service(handler_call_details)


def ours(message: Message) -> list[str]:
    """The fields of ours that are set in a message, or in one inside it."""
    found = []
    for field, value in message.ListFields():
        if field.number >= OURS:
            found.append(field.full_name)
        if field.message_type is not None:
            for item in value if field.is_repeated else [value]:
                found += ours(item)
    return found


def refusing_ours(message: Any) -> Any:
    """The message, which must have nothing of ours."""
    assert not ours(message), ours(message)
    return message


def stripped(message: Any) -> Any:
    """The message without what is ours."""
    for field, _ in message.ListFields():
        if field.number >= OURS:
            message.ClearField(field.name)
    return message


@contextmanager
def served_by_tgi(tokenizer: Tokenizer, folder: Path, **options: Any) -> Generator[str, None, None]:
    """The address of a shard that behaves as one of TGI's."""
    host = ShardHost()
    server = grpc.server(ThreadPoolExecutor(4))
    service = UpstreamService(host)
    server.add_generic_rpc_handlers(service.handlers())
    address = f"unix:{folder / 'tgi'}"
    server.add_insecure_port(address)
    service.url = f"unix://{folder / 'tgi'}"
    server.start()
    host.open(lambda: model(tokenizer, **options))
    try:
        yield address
    finally:
        server.stop(None).wait()
        assert host.close(60)


@asynccontextmanager
async def client(kind: str, tokenizer: Tokenizer, folder: Path, **options: Any) -> AsyncGenerator[ShardClient, None]:
    """A client of a shard of that kind: local, grpc or upstream_tgi."""
    if kind == "local":
        yield LocalShard(model(tokenizer, **options).server)
        return
    serving = served_by_tgi if kind == "upstream_tgi" else served
    with serving(tokenizer, folder, **options) as server:
        address = server if isinstance(server, str) else server.address
        yield (await connect(address, DEMO, tokenizer, quiet)).shard


@asynccontextmanager
async def running(
    kind: str, tokenizer: Tokenizer, folder: Path, plan: WarmupPlan = PLAN, **options: Any
) -> AsyncGenerator[SchedulerLoop, None]:
    """A loop over a shard of that kind."""
    async with client(kind, tokenizer, folder, **options) as shard:
        capacity = await shard.warmup(plan, quiet)
        loop = SchedulerLoop(shard, await shard.info(), capacity)
        async with running_loop(loop, shard):
            yield loop


class Gate:
    """Lets a shard's steps wait, so that a test can look at it meanwhile."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, work: object) -> None:
        """Called by the backend at each step."""
        self.reached.set()
        assert self.opened.wait(60)
