"""What the connections of a server share."""

from __future__ import annotations

from dataclasses import dataclass, field

from tgi_core.config import Settings
from tgi_router.admission import AdmissionControl
from tgi_router.body_buffers import BodyBuffers
from tgi_router.rounds import Rounds

PAYLOADS = 32
"""So many of the largest bodies may be unfinished at once, unless the operator says otherwise."""


@dataclass(slots=True)
class ConnectionPolicy:
    """Limits and accounts. Times in seconds."""

    head_s: float
    body_s: float
    keep_alive_s: float
    stall_s: float
    body_bytes: int
    bodies: BodyBuffers
    max_descriptor: int | None = None
    """A connection with a higher file descriptor is refused, so that the server keeps some for its own work."""
    closing: bool = False
    """From now on each connection ends with the answer under way."""
    admission: AdmissionControl | None = None
    """In front of the app, once it is there."""
    rounds: Rounds = field(default_factory=Rounds)
    """In which what comes is looked at."""

    @classmethod
    def of(cls, settings: Settings) -> ConnectionPolicy:
        """What the settings say."""
        return cls(
            settings.header_timeout,
            settings.body_timeout,
            settings.keep_alive_timeout,
            settings.stream_stall_timeout,
            settings.payload_limit,
            BodyBuffers(settings.total_payload_limit or PAYLOADS * settings.payload_limit),
        )
