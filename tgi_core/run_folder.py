"""Temporary directories for the sockets and files of one run.

The process that creates a directory holds a lock on a file in it. The kernel releases the lock when the process ends for any
reason, so a directory whose lock is free is stale, and the next run removes it. Unlike process ids, locks also work across
containers that share a temporary directory.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import NoReturn

from tgi_core.errors import StartupError

_KINDS = ("tgi-shard-", "tgi-ranks-")
_LOCK = "lock"
_made: set[RunFolder] = set()


class RunFolder:
    """A new directory that only this user can access; `kind` is `shard` or `ranks`. Removed by `remove` or at exit."""

    def __init__(self, kind: str) -> None:
        sweep()
        try:
            made = Path(tempfile.mkdtemp(prefix="tgi-new-"))
            self._lock = os.open(made / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # renamed only once locked, so that no other process considers it stale
            self.path = made.rename(made.with_name(made.name.replace("new", kind, 1)))
        except OSError as error:
            raise StartupError(
                f"cannot create a temporary directory: {error.strerror}; set TMPDIR to a directory that this user can write to"
            ) from error
        _made.add(self)

    def remove(self) -> None:
        """Remove the directory and its contents. Idempotent."""
        if self in _made:
            _made.discard(self)
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)


@atexit.register
def remove_all() -> None:
    """Remove all directories of this process. Call it before an exit that skips atexit handlers."""
    for folder in list(_made):
        folder.remove()


def end_at_once(status: int) -> NoReturn:
    """Exit without waiting for threads, after removing this process's directories and flushing the log."""
    remove_all()
    logging.shutdown()
    os._exit(status)


def sweep() -> None:
    """Remove directories left behind by this user's dead processes."""
    try:
        found = [entry for entry in os.scandir(tempfile.gettempdir()) if entry.name.startswith(_KINDS)]
    except OSError:
        return
    for entry in found:
        try:
            if entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                _remove_unlocked(Path(entry.path))
        except OSError:
            continue  # already removed, or still in use


def _remove_unlocked(folder: Path) -> None:
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
