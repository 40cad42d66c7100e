"""What this backend and NumPy raise, as errors of the contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tgi_core.backend import InvalidModel, OutOfMemory
from tgi_core.errors import StartupError

TABLE = ((StartupError, InvalidModel), (MemoryError, OutOfMemory))


@contextmanager
def translated() -> Iterator[None]:
    """Raises what the table says in place of what was raised."""
    try:
        yield
    except (StartupError, MemoryError) as error:
        raise next(kind for foreign, kind in TABLE if isinstance(error, foreign))(str(error)) from error
