"""What comes from clients is looked at in turns, and what finds no room is refused before it becomes a request."""

from __future__ import annotations

from asyncio import Event
from typing import Any

from tgi_router.connection_policy import ConnectionPolicy
from tgi_router.pipelining import PipelinedProtocol

_MOST_LATE = 1 << 16
"""Bytes of a client that may have come before its turn does; then no more are read."""


class _Answered:
    """In place of the cycle of a request that was answered without one."""

    response_complete = response_started = True
    disconnected = keep_alive = False

    def __init__(self) -> None:
        self.message_event = Event()


class AdmissionProtocol(PipelinedProtocol):
    """A protocol that leaves time for others."""

    def __init__(self, *arguments: Any, policy: ConnectionPolicy) -> None:
        super().__init__(*arguments)
        self._policy = policy
        self._late = False
        """Whether something has come that is yet to be parsed, since it is not its turn."""

    def parse_in_turn(self) -> None:
        """Take what has come, now or later."""
        if not (self._late or self._policy.rounds.full()):
            self.parse()
            return
        if not self._late:
            self._late = True
            self._policy.rounds.later(self.client[0] if self.client else "", self.catch_up)
        if len(self.unparsed) > _MOST_LATE:
            self.flow.pause_reading()

    def catch_up(self) -> None:
        """Take it now. Harmless where nothing is late."""
        if self._late:
            self._late = False
            if not self.transport.is_closing():
                self.flow.resume_reading()
                self.parse()

    def refused_at_once(self) -> bool:
        """Whether there was no room for the request whose head is complete: it has been answered, without the app."""
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
