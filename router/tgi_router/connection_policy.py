"""Limits and accounting shared by all connections of a server."""

from __future__ import annotations

from dataclasses import dataclass, field

from tgi_core.config import Settings
from tgi_router.admission import AdmissionControl
from tgi_router.body_buffers import BodyBuffers
from tgi_router.rounds import Rounds

PAYLOADS = 32
"""Default buffer limit of request bodies, in bodies of the maximum size."""


@dataclass(slots=True)
class ConnectionPolicy:
    """Limits and accounting shared by all connections. Times in seconds."""

    head_s: float
    body_s: float
    keep_alive_s: float
    stall_s: float
    body_bytes: int
    bodies: BodyBuffers
    max_descriptor: int | None = None
    """Connections with a higher file descriptor are rejected, which reserves some descriptors for the server itself."""
    closing: bool = False
    """Whether each connection closes after its response in progress: the server is shutting down."""
    admission: AdmissionControl | None = None
    """Admission control in front of the app; None until the app is up."""
    rounds: Rounds = field(default_factory=Rounds)
    """Spreads parsing over event loop iterations."""

    @classmethod
    def of(cls, settings: Settings) -> ConnectionPolicy:
        """Create the policy from the settings."""
        return cls(
            settings.header_timeout,
            settings.body_timeout,
            settings.keep_alive_timeout,
            settings.stream_stall_timeout,
            settings.payload_limit,
            BodyBuffers(settings.total_payload_limit or PAYLOADS * settings.payload_limit),
        )
