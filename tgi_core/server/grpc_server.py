"""The gRPC server of a shard. It listens before the model is loaded, so that health and progress can be queried."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from tgi_core.errors import StartupError
from tgi_core.media.processing import MOST_PROMPTS
from tgi_core.server.grpc_address import bound_for_us_alone
from tgi_core.server.grpc_host import ShardHost
from tgi_core.server.grpc_service import ShardService
from tgi_core.shard_access import HOW_TO_SHARE, ShardAccess, Tls
from tgi_core.wire.methods import TOKEN, UNLIMITED

_log = logging.getLogger(__name__)

_CALLS = 16 + MOST_PROMPTS
"""Maximum number of concurrent calls: a stream of steps occupies one for its lifetime, a unary verb one while it blocks, and each prompt
with images one until these are encoded. Threads are started when they are needed."""

_LOG_EVERY_S = 60.0

_OPTIONS = (
    *UNLIMITED,
    ("grpc.so_reuseport", 0),  # otherwise a second shard could share the port
    ("grpc.keepalive_time_ms", 30_000),  # a router whose machine has failed must not hold the shard
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)


class ShardServer:
    """A shard's server on one address. `address` is the bound address, with the actual port."""

    def __init__(self, host: ShardHost, address: str, access: ShardAccess = ShardAccess()) -> None:  # noqa: B008  frozen
        self._threads = ThreadPoolExecutor(_CALLS, thread_name_prefix="grpc")
        guards: list[grpc.ServerInterceptor] = [_TokenGuard(access.token)] if access.token else []
        self._server = grpc.server(self._threads, options=_OPTIONS, interceptors=guards)
        service = ShardService(host)
        self.tenancy = service.tenancy
        self._server.add_generic_rpc_handlers(service.handlers())
        try:
            with bound_for_us_alone():
                port = self._bind(address, access.tls)
        except RuntimeError as error:
            raise StartupError(
                f"{address}: cannot listen there: it is in use, not an address of this machine, or not for this user"
            ) from error
        self.address = address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
        service.url = self.address.replace("unix:", "unix://")

    def start(self) -> None:
        """Start serving calls."""
        self._server.start()

    def _bind(self, address: str, tls: Tls | None) -> int:
        if tls is None:
            return self._server.add_insecure_port(address)
        if tls.own is None:
            raise StartupError(f"{address}: TLS needs a certificate of the shard's own")
        mutual = tls.authorities is not None
        return self._server.add_secure_port(address, grpc.ssl_server_credentials([tls.own], tls.authorities, mutual))

    def stop(self, grace: float | None = None) -> None:
        """Stop the server. Calls may take up to `grace` seconds to end; then, or without it at once, they are cancelled."""
        self._server.stop(grace).wait()
        self._threads.shutdown(wait=False)


class _TokenGuard(grpc.ServerInterceptor):
    """Rejects calls without the token, for any method, before their messages are read."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._refusal: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(self._refuse)
        self._logged_at = float("-inf")

    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Any], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Return the handler of a call, or one that rejects it."""
        given = [value for name, value in handler_call_details.invocation_metadata or () if name == TOKEN]
        if len(given) == 1 and hmac.compare_digest(str(given[0]).encode(), self._token):
            return continuation(handler_call_details)
        return self._refusal

    def _refuse(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        if time.monotonic() - self._logged_at > _LOG_EVERY_S:
            self._logged_at = time.monotonic()
            _log.warning(
                "a call from %s without this shard's token was refused; for a router of yours, %s", context.peer(), HOW_TO_SHARE
            )
        context.abort(grpc.StatusCode.UNAUTHENTICATED, f"this shard wants a token, and got none or another: {HOW_TO_SHARE}")
        yield
