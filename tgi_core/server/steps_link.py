"""Turns of the parent router, over a socket pair that this process has inherited."""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import suppress

from tgi_core.backend import BackendError, DeviceLost
from tgi_core.framing import FrameSocket
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.server.grpc_tenant import Superseded, Tenancy
from tgi_core.wire.frames import Kind, failure, kind_frame
from tgi_core.wire.results import encode_result
from tgi_core.wire.turns import decode_turn

_log = logging.getLogger(__name__)


class StepsLink:
    """Answers turns in the shard's own thread, which reads, computes and writes, so that nothing passes between threads. The link
    has that thread from the router's first turn, after the warm-up, until the router disconnects."""

    def __init__(self, stream: socket.socket, tenancy: Tenancy) -> None:
        self._stream = stream
        self._tenancy = tenancy

    def start(self) -> None:
        """Wait for the first turn in a thread of its own."""
        threading.Thread(target=self._wait, name="steps", daemon=True).start()

    def close(self) -> None:
        """Stop reading turns, which frees the shard's thread. Idempotent."""
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)

    def _wait(self) -> None:
        with suppress(OSError, DeviceLost):
            if self._stream.recv(1, socket.MSG_PEEK):
                self._tenancy.host.run(self._serve)

    def _serve(self) -> None:
        tenant = self._tenancy.admit()
        try:
            turns = FrameSocket(self._stream)
            while True:
                turn = decode_turn(pb.Turn.FromString(turns.receive()[1:]))
                result = encode_result(tenant.exchange(turn))
                self._stream.sendall(kind_frame(Kind.MESSAGE, result.SerializeToString()))
        except (EOFError, OSError):
            _log.info("the router has left")
        except Exception as error:  # noqa: BLE001  it is answered
            if not isinstance(error, BackendError | Superseded):
                _log.error("a turn failed", exc_info=error)
            with suppress(OSError):
                self._stream.sendall(failure(error))
        finally:
            tenant.leave()
            self.close()
