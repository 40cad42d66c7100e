"""Queue, continuous batching and block accounting."""

from tgi_core.scheduler.loop import SchedulerLoop
from tgi_core.scheduler.scheduler import Event, Scheduler, Snapshot
from tgi_core.scheduler.stream import GenerationStream
from tgi_core.scheduler.types import GenerationFailed, GenerationRequest, Limits, Overloaded, SchedulerError

__all__ = [
    "Event",
    "GenerationFailed",
    "GenerationRequest",
    "GenerationStream",
    "Limits",
    "Overloaded",
    "Scheduler",
    "SchedulerError",
    "SchedulerLoop",
    "Snapshot",
]
