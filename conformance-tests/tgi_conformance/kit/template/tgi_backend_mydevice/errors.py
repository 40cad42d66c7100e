"""From the exceptions of the device's library to the errors of the contract, in one table.

The core reacts to the scope of a contract error: OutOfMemory makes it shrink the batch, DeviceLost makes it reopen. An
exception that is not in the table ends the session as BackendBug, so name what your library raises, each class of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tgi_core.backend import BackendError, DeviceBusy, DeviceLost, InvalidModel, OutOfMemory
from tgi_core.errors import StartupError

# Replace: the left column, with what your library raises; the first match counts, so put subclasses first.
TABLE: tuple[tuple[type[Exception], type[BackendError]], ...] = (
    (StartupError, InvalidModel),  # what tgi_core.model_files raises; keep this row
    (MemoryError, OutOfMemory),
    (PermissionError, DeviceBusy),
    (ConnectionError, DeviceLost),
    (TimeoutError, DeviceLost),
)


@contextmanager
def translated() -> Iterator[None]:
    """Raises the table's errors in place of the device library's."""
    try:
        yield
    except tuple(foreign for foreign, _ in TABLE) as error:
        kind = next(kind for foreign, kind in TABLE if isinstance(error, foreign))
        text = " ".join(str(error).split())  # one line, as the contract requires
        raise kind(text or type(error).__name__) from error
