"""Errors of the scheduler, as the errors that a client receives."""

from __future__ import annotations

from tgi_core.backend import RowFaultKind
from tgi_core.scheduler.types import DeadlineExceeded, NotRead, Overloaded, RequestFailed, SchedulerError, Stopped
from tgi_router.errors import (
    ModelOverloaded,
    NotFinite,
    ReadTooSlowly,
    RouterError,
    ShardFailed,
    ShardLost,
    ShuttingDown,
    TimedOut,
)
from tgi_router.permits import spread


def router_error(error: SchedulerError) -> RouterError:
    """Return the error for the client."""
    if isinstance(error, Overloaded):
        return ModelOverloaded(spread(error.retry_after_s))
    if isinstance(error, Stopped):
        return ShuttingDown()
    if isinstance(error, NotRead):
        return ReadTooSlowly()
    if isinstance(error, RequestFailed):
        return NotFinite(str(error)) if error.kind is RowFaultKind.NAN else ShardFailed(str(error))
    return TimedOut() if isinstance(error, DeadlineExceeded) else ShardLost(str(error))
