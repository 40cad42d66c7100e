"""Request queue, continuous batching, KV block accounting and prefix reuse."""

from tgi_core.scheduler.events import Event, Snapshot, Started
from tgi_core.scheduler.loop import SchedulerLoop
from tgi_core.scheduler.scheduler import Scheduler
from tgi_core.scheduler.stream import GenerationStream
from tgi_core.scheduler.types import (
    DeadlineExceeded,
    GenerationFailed,
    GenerationRequest,
    Limits,
    Overloaded,
    RequestFailed,
    SchedulerError,
    SchedulerOptions,
    SchedulingParams,
)

__all__ = [
    "DeadlineExceeded",
    "Event",
    "GenerationFailed",
    "GenerationRequest",
    "GenerationStream",
    "Limits",
    "Overloaded",
    "RequestFailed",
    "Scheduler",
    "SchedulerError",
    "SchedulerLoop",
    "SchedulerOptions",
    "SchedulingParams",
    "Snapshot",
    "Started",
]
