"""uvicorn's server, with our connections."""

from __future__ import annotations

import socket
from functools import partial

import uvicorn

from tgi_router.acceptor import Acceptor
from tgi_router.connection import Connection
from tgi_router.connection_policy import ConnectionPolicy

BACKLOG = 2048
"""Connections that the kernel keeps until they are accepted."""


class HttpServer(uvicorn.Server):
    """A server whose connections keep to a policy, on sockets that are bound already."""

    def __init__(self, config: uvicorn.Config, policy: ConnectionPolicy) -> None:
        super().__init__(config)
        self.policy = policy
        self._acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup([])
        protocol = partial(Connection, self.config, self.server_state, self.lifespan.state, policy=self.policy)
        for listener in sockets or ():
            listener.listen(BACKLOG)
            self._acceptors.append(Acceptor(listener, protocol, self.policy, self.server_state.default_headers))

    def stop_listening(self) -> None:
        """Let nobody in any more."""
        for acceptor in self._acceptors:
            acceptor.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let nobody in any more, and end."""
        self.stop_listening()
        await super().shutdown(sockets)
