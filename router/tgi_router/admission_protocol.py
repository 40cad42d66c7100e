"""Parses input of clients in turns, and rejects requests of an overloaded server before they become tasks."""

from __future__ import annotations

from asyncio import Event
from typing import Any

from tgi_router.connection_policy import ConnectionPolicy
from tgi_router.pipelining import PipelinedProtocol

_MOST_LATE = 1 << 16
"""Unparsed bytes above which reading pauses until the connection's turn."""


class _Answered:
    """Stands in for the cycle of a request that was rejected without one."""

    response_complete = response_started = True
    disconnected = keep_alive = False

    def __init__(self) -> None:
        self.message_event = Event()


class AdmissionProtocol(PipelinedProtocol):
    """A protocol that takes turns with other connections and applies admission control."""

    def __init__(self, *arguments: Any, policy: ConnectionPolicy) -> None:
        super().__init__(*arguments)
        self._policy = policy
        self._late = False
        """Whether parsing of received bytes is deferred until the connection's turn."""

    def parse_in_turn(self) -> None:
        """Parse the received bytes, now or in the connection's turn."""
        if not (self._late or self._policy.rounds.full()):
            self.parse()
            return
        if not self._late:
            self._late = True
            self._policy.rounds.later(self.client[0] if self.client else "", self.catch_up)
        if len(self.unparsed) > _MOST_LATE:
            self.flow.pause_reading()

    def catch_up(self) -> None:
        """Parse deferred bytes now. No effect if there are none."""
        if self._late:
            self._late = False
            if not self.transport.is_closing():
                self.flow.resume_reading()
                self.parse()

    def refused_at_once(self) -> bool:
        """Reject the request whose head is complete if there is no capacity. Return whether it was rejected."""
        answer = self._answer_at_once()
        if answer is None:
            self._policy.rounds.request_begun()
            return False
        self.cycle = _Answered()  # type: ignore[assignment]
        self.transport.write(answer)
        self.server_state.total_requests += 1
        return True

    def _answer_at_once(self) -> bytes | None:
        admission, parser = self._policy.admission, self.parser
        if admission is None or parser.get_method() != b"POST" or parser.get_http_version() != "1.1" or parser.should_upgrade():
            return None
        if self._policy.closing or self.unanswered():
            return None
        return admission.refuse(self.url, self.client, self.headers, self.server_state.default_headers)
