"""Grammars that a router has the shard prepare."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from tgi_core.grammar import Grammar, GrammarsBusy, InvalidGrammar
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.server.grpc_host import ShardHost
from tgi_core.wire.preparing import decode_prepare


class PreparedGrammars:
    """Implements the method `Prepare` and holds the prepared grammars of the current router. Thread-safe."""

    def __init__(self, host: ShardHost) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._kept: Counter[Grammar] = Counter()

    def answer(self, request: pb.PrepareRequest, heard: Callable[[], bool]) -> pb.PrepareResponse:
        """Compile and keep a grammar, or release it. Waits for the compilation, not for the shard's thread. A grammar is released
        if `heard` reports that the client has disconnected. Raises BackendError."""
        server = self._host.model().server
        grammar, cost = decode_prepare(request)
        if request.release:
            if self._let_go(grammar):
                server.release(grammar)
            return pb.PrepareResponse()
        try:
            server.prepare(grammar, cost).result()
        except GrammarsBusy:
            return pb.PrepareResponse(busy=True)
        except InvalidGrammar as error:
            return pb.PrepareResponse(fault=error.detail.encode(errors="replace").decode() or "it does not compile")
        with self._lock:  # a client that has given up releases the grammar later: it must find it kept, or never kept
            if heard():
                self._kept[grammar] += 1
                return pb.PrepareResponse()
        server.release(grammar)
        return pb.PrepareResponse(busy=True)

    def clear(self) -> None:
        """Release all grammars of a router that has disconnected."""
        with self._lock:
            kept, self._kept = self._kept, Counter()
        for grammar in kept.elements():
            self._host.model().server.release(grammar)

    def _let_go(self, grammar: Grammar) -> bool:
        with self._lock:
            had = self._kept[grammar]
            self._kept[grammar] = max(had - 1, 0)
            self._kept += Counter()  # drops entries with count 0
        return had > 0
