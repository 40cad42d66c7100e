"""uvicorn's server with the connections of `tgi_router.connection`."""

from __future__ import annotations

import socket
from functools import partial

import uvicorn

from tgi_router.acceptor import Acceptor
from tgi_router.connection import Connection
from tgi_router.connection_policy import ConnectionPolicy

BACKLOG = 2048
"""Backlog: maximum number of connections that the kernel queues until they are accepted."""


class HttpServer(uvicorn.Server):
    """A server whose connections enforce a policy, on sockets that are already bound."""

    def __init__(self, config: uvicorn.Config, policy: ConnectionPolicy) -> None:
        super().__init__(config)
        self.policy = policy
        self._acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening."""
        await super().startup([])
        protocol = partial(Connection, self.config, self.server_state, self.lifespan.state, policy=self.policy)
        for listener in sockets or ():
            listener.listen(BACKLOG)
            self._acceptors.append(Acceptor(listener, protocol, self.policy, self.server_state.default_headers))

    def stop_listening(self) -> None:
        """Stop accepting connections."""
        for acceptor in self._acceptors:
            acceptor.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, and shut down."""
        self.stop_listening()
        await super().shutdown(sockets)
