"""The gRPC server of a shard: it listens before the model is read, so that health and progress can be asked for."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from tgi_core.errors import StartupError
from tgi_core.proto.methods import TOKEN, UNLIMITED
from tgi_core.server.grpc_address import bound_for_us_alone
from tgi_core.server.grpc_host import ShardHost
from tgi_core.server.grpc_service import ShardService

_CALLS = 16
"""Calls at once: a stream of steps holds one for its life, each unary verb one while it waits."""

_OPTIONS = (
    *UNLIMITED,
    ("grpc.so_reuseport", 0),  # or a second shard could share the port
    ("grpc.keepalive_time_ms", 30_000),  # a router whose machine is gone must not hold the shard
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)


class ShardServer:
    """A shard's server on one address. `address` is where it listens, with the port that was chosen."""

    def __init__(self, host: ShardHost, address: str, token: str | None = None) -> None:
        self._threads = ThreadPoolExecutor(_CALLS, thread_name_prefix="grpc")
        guards: list[grpc.ServerInterceptor] = [_TokenGuard(token)] if token else []
        self._server = grpc.server(self._threads, options=_OPTIONS, interceptors=guards)
        service = ShardService(host)
        self.tenancy = service.tenancy
        self._server.add_generic_rpc_handlers(service.handlers())
        try:
            with bound_for_us_alone():
                port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise StartupError(f"{address}: cannot listen there: it is in use, or not an address of this machine") from error
        self.address = address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
        service.url = self.address.replace("unix:", "unix://")

    def start(self) -> None:
        """Begin to answer."""
        self._server.start()

    def stop(self) -> None:
        """End all calls."""
        self._server.stop(None).wait()
        self._threads.shutdown(wait=False)


class _TokenGuard(grpc.ServerInterceptor):
    """Refuses calls without the token."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Any], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Hand the call on, or to a handler that ends it."""
        given = dict(handler_call_details.invocation_metadata or ()).get(TOKEN, "")
        if hmac.compare_digest(str(given).encode(), self._token):
            return continuation(handler_call_details)
        handler = continuation(handler_call_details)
        if handler is not None and handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(_refuse)
        return grpc.unary_unary_rpc_method_handler(_refuse)


def _refuse(request: Any, context: grpc.ServicerContext) -> Any:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "this shard wants a token")
