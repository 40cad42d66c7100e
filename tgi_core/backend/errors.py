"""The errors of the hardware seam.

    BackendError                 scope      state it leaves
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

The core reacts to `scope`, never to a Python type. "unchanged" holds for an error from a verb; the same error from `rows` ends that
step's batch and all that was derived from it (`SessionSpec`).
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar


class Scope(Enum):
    """How far an error reaches."""

    REQUEST = "request"
    BATCH = "batch"
    SESSION = "session"


class Left(Enum):
    """The state that an error leaves behind."""

    UNCHANGED = "unchanged"
    LOST = "lost"
    UNKNOWN = "unknown"


class BackendError(Exception):
    """Base of the tree. `request_ids` names the requests at fault where the backend knows them."""

    scope: ClassVar[Scope] = Scope.SESSION
    leaves: ClassVar[Left] = Left.UNCHANGED

    def __init__(self, message: str, *, request_ids: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.request_ids = request_ids


class InvalidRequest(BackendError):
    """The arguments break the contract."""

    scope = Scope.REQUEST


class UnknownBatch(BackendError):
    """The handle is stale or was never given out."""

    scope = Scope.REQUEST


class UnknownRequest(BackendError):
    """The batch has no such row."""

    scope = Scope.REQUEST


class Unsupported(BackendError):
    """A feature that this session did not declare; raised before the device is touched."""

    scope = Scope.REQUEST


class CapacityExceeded(BackendError):
    """More than `Capacity` promised."""

    scope = Scope.BATCH


class OutOfMemory(BackendError):
    """The device has no room; after warmup this breaks a promise."""

    scope = Scope.BATCH


class CompileFailed(BackendError):
    """A shape could not be compiled."""

    scope = Scope.BATCH


class DeviceBusy(BackendError):
    """Another process holds the device."""


class InvalidModel(BackendError):
    """The model's files are missing, damaged or of a kind this backend cannot run; the message names the file."""


class PeerLost(BackendError):
    """Another rank of the group is gone."""

    leaves = Left.LOST


class DeviceLost(BackendError):
    """The device is gone; every handle is dead."""

    leaves = Left.LOST


class BackendBug(BackendError):
    """The plugin broke the contract: a foreign exception, a None, a missing hook."""

    leaves = Left.UNKNOWN
