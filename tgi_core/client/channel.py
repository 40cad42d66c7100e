"""A gRPC channel to a shard, and its errors."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError, Message
from grpc import aio

from tgi_core.backend import BackendBug, BackendError, DeviceLost, errors
from tgi_core.client.base import TakenOver
from tgi_core.client.result_validator import invalid
from tgi_core.shard_access import ShardAccess
from tgi_core.wire.frames import MAX_BYTES
from tgi_core.wire.methods import ERROR_KIND, TOKEN, V3

_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 30_000),  # detect the loss of the shard's machine
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.client_idle_timeout_ms", (1 << 31) - 1),  # the socket's path may have been removed, which would prevent a reconnect
)

_GONE = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAUTHENTICATED,
}


class CallFailed(Exception):
    """A call failed. `gone`: the shard cannot be reached any more. `unreachable`: nothing responds at the address. `kind` is the
    class of the shard's error, if the shard reported one."""

    def __init__(self, text: str, kind: str, gone: bool, unreachable: bool = False) -> None:
        super().__init__(text)
        self.kind = kind
        self.gone = gone
        self.unreachable = unreachable

    def translated(self) -> BackendError:
        """Convert to an error of the contract."""
        if self.gone:
            return DeviceLost(f"the shard is gone: {self}")
        if self.kind == "Superseded":
            return TakenOver(str(self))
        kind = getattr(errors, self.kind, None)
        if isinstance(kind, type) and issubclass(kind, BackendError):
            return kind(str(self))
        return BackendBug(f"the shard failed: {self}")


class ShardChannel:
    """The methods of generate.v3 at one address: `unix:PATH` or `HOST:PORT`. Bound to one event loop."""

    def __init__(self, address: str, access: ShardAccess = ShardAccess()) -> None:  # noqa: B008  frozen
        self.address = address
        self._channel = _opened(address, access)
        self._metadata = ((TOKEN, access.token),) if access.token else ()
        self._closed = False
        self._unary: dict[str, Any] = {
            name: self._channel.unary_unary(method.path, request_serializer=method.request.SerializeToString)
            for name, method in V3.items()
            if not method.streaming
        }

    async def call(self, name: str, request: Any, timeout: float | None = None) -> Any:
        """Call a unary method. Raises CallFailed, also if the channel is closed meanwhile; BackendBug for an undecodable
        response."""
        self._check_open()
        try:
            answer = await self._unary[name](request, metadata=self._metadata, timeout=timeout)
        except aio.AioRpcError as error:
            raise _failed(error) from error
        except asyncio.CancelledError:
            _raise_if_asked()
            raise CallFailed("this router has left it", "", gone=True) from None
        return parsed(V3[name].response, answer)

    def steps(self) -> StepStream:
        """Open the stream of steps. Raises CallFailed once the channel is closed."""
        self._check_open()
        method = V3["Steps"]
        open_stream: Any = self._channel.stream_stream(method.path, request_serializer=method.request.SerializeToString)
        return StepStream(open_stream(metadata=self._metadata))

    async def broken(self) -> None:
        """Wait until the open connection is lost."""
        with suppress(aio.UsageError):  # closed by this client
            state = self._channel.get_state(try_to_connect=True)
            while state is not grpc.ChannelConnectivity.READY:
                await self._channel.wait_for_state_change(state)
                state = self._channel.get_state()
            await self._channel.wait_for_state_change(state)

    async def close(self) -> None:
        """Close the channel and cancel all calls. Idempotent."""
        self._closed = True
        await self._channel.close()

    def _check_open(self) -> None:
        if self._closed:
            raise CallFailed("this router has left it", "", gone=True)


class StepStream:
    """One stream of turns and results."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def exchange(self, message: Any) -> Any:
        """Write one message and read its answer. Raises CallFailed; BackendBug for an undecodable answer."""
        try:
            await self._call.write(message)
            answer = await self._call.read()
        except aio.AioRpcError as error:
            failed = _failed(error)
            # without an error from the shard, a broken stream means that the shard is lost
            raise CallFailed(str(failed), failed.kind, failed.gone or not failed.kind) from error
        except asyncio.InvalidStateError:
            await self._ended()
        except asyncio.CancelledError:
            _raise_if_asked()
            raise CallFailed("this router has left it", "", gone=True) from None  # the channel was closed meanwhile
        if answer is aio.EOF:
            await self._ended()
        return parsed(V3["Steps"].response, answer)

    async def _ended(self) -> NoReturn:
        """Return the error of a stream that has ended."""
        details = await self._call.details()
        raise CallFailed(
            details or "it has ended the stream of steps", "", await self._call.code() in {grpc.StatusCode.OK, *_GONE}
        )


def _opened(address: str, access: ShardAccess) -> aio.Channel:
    tls = access.tls
    if tls is None:
        return aio.insecure_channel(address, options=_OPTIONS)
    return aio.secure_channel(address, grpc.ssl_channel_credentials(tls.authorities, *(tls.own or ())), options=_OPTIONS)


def parsed(kind: type[Message], data: bytes) -> Any:
    """Decode an answer of that kind. Raises BackendBug if that fails, also because of text that is not UTF-8."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise invalid(f"{len(data)} bytes that are no {kind.DESCRIPTOR.name}") from error


def _raise_if_asked() -> None:
    """Raise CancelledError if this task was cancelled; return if only the call was. For handlers of a cancelled call."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _failed(error: aio.AioRpcError) -> CallFailed:
    kind = dict(error.trailing_metadata() or ()).get(ERROR_KIND, "")
    code = error.code()
    return CallFailed(error.details() or code.name, str(kind), code in _GONE, code is grpc.StatusCode.UNAVAILABLE)
