"""The methods of the shard's gRPC services, v3 and v2, around a `ShardHost`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import grpc
from google.protobuf.message import Message

from tgi_core.backend import BackendError, Capacity, DeviceLost, WarmupPlan
from tgi_core.blocks import ONE_BLOCK, CacheBlocks
from tgi_core.errors import StartupError
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.server.grpc_grammars import PreparedGrammars
from tgi_core.server.grpc_host import ShardHost
from tgi_core.server.grpc_images import tokenize_images
from tgi_core.server.grpc_tenant import Superseded, Tenancy
from tgi_core.server.lockstep.verbs import LockStep, VerbFailed
from tgi_core.wire.describing import MOST_TOKENS, decode_plan, encode_capacity, encode_health, encode_info, first_block_size
from tgi_core.wire.health import ShardState
from tgi_core.wire.methods import ERROR_KIND, SERVICE, V2, V3, Method
from tgi_core.wire.results import encode_result
from tgi_core.wire.turns import decode_turn

_log = logging.getLogger(__name__)

_V2_BLOCK = 16
"""Block size, in tokens, in which a v2 router accounts for requests, whatever the shard's block size."""

Behaviour = Callable[[Any, grpc.ServicerContext], Any]


class ShardService:
    """Implements the shard's services. `url` is returned by service discovery: rank 0 represents all ranks."""

    def __init__(self, host: ShardHost) -> None:
        self.url = ""
        self._host = host
        self.tenancy = Tenancy(host)
        self._grammars = PreparedGrammars(host)
        self._lockstep: LockStep | None = None
        self._making = threading.Lock()

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """Return the handlers, one per version of the interface."""
        behaviours: dict[str, Behaviour] = {name: getattr(self, f"_{_snake(name)}") for name in V3}
        older = behaviours | {"Prefill": self._prefill_v2, "Warmup": self._warmup_v2}
        third = {name: _handler(V3[name], behaviours[name]) for name in V3}
        second = {name: _handler(V2[name], _as_v2(older[name], V3[name], V2[name])) for name in V2}
        return (
            grpc.method_handlers_generic_handler(f"generate.v3.{SERVICE}", third),
            grpc.method_handlers_generic_handler(f"generate.v2.{SERVICE}", second),
        )

    def _health(self, request: pb.HealthRequest, context: grpc.ServicerContext) -> pb.HealthResponse:
        health = self._host.health()
        if health.state is ShardState.LOST:  # a TGI router reads only success or failure
            raise DeviceLost("the backend has failed; the shard's log says how")
        return encode_health(health)

    def _info(self, request: pb.InfoRequest, context: grpc.ServicerContext) -> pb.InfoResponse:
        model = self._host.model()
        return encode_info(model.server.info, model.tokenizer_hash)

    def _service_discovery(self, request: Message, context: grpc.ServicerContext) -> pb.ServiceDiscoveryResponse:
        return pb.ServiceDiscoveryResponse(urls=[self.url])

    def _warmup(self, request: pb.WarmupRequest, context: grpc.ServicerContext) -> pb.WarmupResponse:
        self._host.model()
        if request.HasField("plan"):
            return pb.WarmupResponse(capacity=encode_capacity(self._host.warmup(decode_plan(request.plan))))
        response, capacity = self._warmup_of_tgi(request), self._capacity()
        can = self._host.model().server.info.capabilities
        if not can.block_sizes:  # the router divides by the size that it was told
            blocks = CacheBlocks(capacity.groups).total
            response.max_supported_total_tokens = min(blocks * first_block_size(can), MOST_TOKENS)
        return response

    def _warmup_of_tgi(self, request: pb.WarmupRequest) -> pb.WarmupResponse:
        """Warm up. TGI's shard measures its memory with the given batch; here, the backend reserves memory by the limits."""
        block_sizes = self._host.model().server.info.capabilities.block_sizes
        capacity = self._host.warmup(
            WarmupPlan(
                max_row_tokens=request.max_total_tokens or None,
                max_step_tokens=request.max_prefill_tokens or None,
                block_size=next(iter(block_sizes), None),
                window_blocks=0,
            )
        )
        total = request.max_total_tokens or capacity.max_row_tokens
        longest = request.max_input_tokens or total - 1
        if total > capacity.max_row_tokens:
            raise VerbFailed(f"max_total_tokens {total}: this shard has room for {capacity.max_row_tokens} tokens per request")
        return pb.WarmupResponse(
            max_supported_total_tokens=min(CacheBlocks(capacity.groups).max_row_tokens, MOST_TOKENS),
            max_input_tokens=longest,
            max_total_tokens=total,
        )

    def _warmup_v2(self, request: pb.WarmupRequest, context: grpc.ServicerContext) -> pb.WarmupResponse:
        """Return the capacity for a v2 router, which rounds requests up to its own small blocks: the maximum difference from the
        shard's rounding is subtracted in advance."""
        response, capacity = self._warmup_of_tgi(request), self._capacity()
        size = max((group.block_size for group in capacity.groups if group.kind not in ONE_BLOCK), default=1)
        lost = capacity.max_rows * (size - 1) if size > _V2_BLOCK else 0
        response.max_supported_total_tokens = max(capacity.max_row_tokens, response.max_supported_total_tokens - lost)
        return response

    def _prefill_v2(self, request: pb.PrefillRequest, context: grpc.ServicerContext) -> pb.PrefillResponse:
        """Convert a v2 request, which always adds special tokens."""
        for item in request.batch.requests:
            item.add_special_tokens = True
        return self._prefill(request, context)

    def _prefill(self, request: pb.PrefillRequest, context: grpc.ServicerContext) -> pb.PrefillResponse:
        return self._verbs().prefill(request)

    def _decode(self, request: pb.DecodeRequest, context: grpc.ServicerContext) -> pb.DecodeResponse:
        return self._verbs().decode(request)

    def _filter_batch(self, request: pb.FilterBatchRequest, context: grpc.ServicerContext) -> pb.FilterBatchResponse:
        return self._verbs().filter(request)

    def _clear_cache(self, request: pb.ClearCacheRequest, context: grpc.ServicerContext) -> pb.ClearCacheResponse:
        if self._host.capacity is None:  # the first call of a router, with nothing to clear yet
            return pb.ClearCacheResponse()
        return self._verbs().clear(request)

    def _steps(self, requests: Iterable[pb.Turn], context: grpc.ServicerContext) -> Iterator[pb.TurnResult]:
        """Serve the stream of turns of a tgi-core router."""
        self._capacity()
        tenant = self.tenancy.admit()
        try:
            for message in requests:
                yield encode_result(tenant.exchange(decode_turn(message)))
        finally:
            tenant.leave()
            self._grammars.clear()

    def _prepare(self, request: pb.PrepareRequest, context: grpc.ServicerContext) -> pb.PrepareResponse:
        """Prepare a grammar. tgi-core's routers use this, too, since a step must not wait for a grammar."""
        return self._grammars.answer(request, context.is_active)

    def _tokenize_images(self, request: pb.TokenizeImagesRequest, context: grpc.ServicerContext) -> pb.TokenizeImagesResponse:
        return tokenize_images(self._host, request, context)

    def _capacity(self) -> Capacity:
        if self._host.capacity is None:
            raise VerbFailed("the shard is not warmed up")
        return self._host.capacity

    def _verbs(self) -> LockStep:
        capacity = self._capacity()
        with self._making:
            if self._lockstep is None:
                self._lockstep = LockStep(self.tenancy, self._host.model(), capacity)
            return self._lockstep


def _handler(method: Method, behaviour: Behaviour) -> grpc.RpcMethodHandler[Any, Any]:
    make = grpc.stream_stream_rpc_method_handler if method.streaming else grpc.unary_unary_rpc_method_handler
    guarded = _guarded_stream(behaviour) if method.streaming else _guarded(behaviour)
    return make(guarded, request_deserializer=method.request.FromString, response_serializer=method.response.SerializeToString)


def _guarded(behaviour: Behaviour) -> Behaviour:
    """Abort a call with an error. As in TGI, every error has status INTERNAL and the error's message."""

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return behaviour(request, context)
        except Exception as error:  # noqa: BLE001  it is answered
            _abort(context, error)

    return answer


def _guarded_stream(behaviour: Behaviour) -> Behaviour:
    def answer(requests: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            yield from behaviour(requests, context)
        except grpc.RpcError:
            return  # the router has disconnected
        except Exception as error:  # noqa: BLE001  it is answered
            _abort(context, error)

    return answer


def _abort(context: grpc.ServicerContext, error: Exception) -> NoReturn:
    if not isinstance(error, BackendError | StartupError | VerbFailed | Superseded):
        _log.error("a call failed", exc_info=error)
    context.set_trailing_metadata(((ERROR_KIND, type(error).__name__),))
    context.abort(grpc.StatusCode.INTERNAL, str(error) or type(error).__name__)
    raise AssertionError("abort raises") from error


def _as_v2(behaviour: Behaviour, newer: Method, older: Method) -> Behaviour:
    """Convert between v2 and v3 messages. v2 lacks some fields of v3; those must not be sent to a v2 router."""

    def answer(request: Message, context: grpc.ServicerContext) -> Message:
        response = behaviour(newer.request.FromString(request.SerializeToString()), context)
        narrowed = older.response.FromString(response.SerializeToString())
        narrowed.DiscardUnknownFields()
        return narrowed

    return answer


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
