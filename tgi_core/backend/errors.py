"""Errors of the backend contract.

    BackendError                 scope      state afterwards
    ├── InvalidRequest           request    unchanged
    ├── UnknownBatch             request    unchanged
    ├── UnknownRequest           request    unchanged
    ├── Unsupported              request    unchanged
    ├── CapacityExceeded         batch      unchanged
    ├── OutOfMemory              batch      unchanged
    ├── CompileFailed            batch      unchanged
    ├── DeviceBusy               session    unchanged
    ├── InvalidModel             session    unchanged
    ├── PeerLost                 session    lost
    ├── DeviceLost               session    lost
    └── BackendBug               session    unknown

The core reacts to `scope`, never to a Python type. "unchanged" applies to an error raised by a verb; the same error raised by
`rows` ends that step's batch and everything derived from it (see `SessionSpec`).
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar


class Scope(Enum):
    """What an error affects."""

    REQUEST = "request"
    BATCH = "batch"
    SESSION = "session"


class Left(Enum):
    """State of the session after an error."""

    UNCHANGED = "unchanged"
    LOST = "lost"
    UNKNOWN = "unknown"


class BackendError(Exception):
    """Base class of all backend errors. `request_ids` names the requests that caused the error, if the backend knows them."""

    scope: ClassVar[Scope] = Scope.SESSION
    leaves: ClassVar[Left] = Left.UNCHANGED

    def __init__(self, message: str, *, request_ids: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.request_ids = request_ids


class InvalidRequest(BackendError):
    """The arguments violate the contract."""

    scope = Scope.REQUEST


class UnknownBatch(BackendError):
    """The handle is stale or was never returned."""

    scope = Scope.REQUEST


class UnknownRequest(BackendError):
    """The batch has no row for this request."""

    scope = Scope.REQUEST


class Unsupported(BackendError):
    """The session did not declare this feature. Raised before any work on the device."""

    scope = Scope.REQUEST


class CapacityExceeded(BackendError):
    """The call exceeds the limits in `Capacity`."""

    scope = Scope.BATCH


class OutOfMemory(BackendError):
    """The device is out of memory. After warmup, this breaks the promise made by `Capacity`."""

    scope = Scope.BATCH


class CompileFailed(BackendError):
    """A shape could not be compiled."""

    scope = Scope.BATCH


class DeviceBusy(BackendError):
    """Another process holds the device."""


class InvalidModel(BackendError):
    """The model's files are missing, corrupt or not supported by this backend; the message names the file."""


class PeerLost(BackendError):
    """Another rank of the group has died or is unreachable."""

    leaves = Left.LOST


class DeviceLost(BackendError):
    """The device is lost; all handles are invalid."""

    leaves = Left.LOST


class BackendBug(BackendError):
    """The plugin violated the contract, for example with an exception other than BackendError, a None result or a missing hook."""

    leaves = Left.UNKNOWN
