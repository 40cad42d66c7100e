"""Folders for the sockets and files of one run, in the system's temporary folder.

Who makes one holds a lock on a file in it. The kernel lets go of a lock when its process ends, however that comes about, so a folder
whose lock is free is nobody's any more, and the next run takes it away; also where containers share one temporary folder, in which
a process id would say nothing.
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
    """A new folder that only this user can enter; `kind` is `shard` or `ranks`. It goes with `remove`, or with the process."""

    def __init__(self, kind: str) -> None:
        sweep()
        try:
            made = Path(tempfile.mkdtemp(prefix="tgi-new-"))
            self._lock = os.open(made / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # under its own name it is locked from the beginning: nobody takes it for a dead one's
            self.path = made.rename(made.with_name(made.name.replace("new", kind, 1)))
        except OSError as error:
            raise StartupError(
                f"cannot create a temporary directory: {error.strerror}; set TMPDIR to a directory where this user can write"
            ) from error
        _made.add(self)

    def remove(self) -> None:
        """Remove it and all that is in it. Idempotent."""
        if self in _made:
            _made.discard(self)
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)


@atexit.register
def remove_all() -> None:
    """Remove what this process has made; for an end at which the interpreter does not."""
    for folder in list(_made):
        folder.remove()


def end_at_once(status: int) -> NoReturn:
    """End the process without waiting for its threads, but with its last lines in the log and its folders removed."""
    remove_all()
    logging.shutdown()
    os._exit(status)


def sweep() -> None:
    """Remove what processes of this user that are dead have left behind."""
    try:
        found = [entry for entry in os.scandir(tempfile.gettempdir()) if entry.name.startswith(_KINDS)]
    except OSError:
        return
    for entry in found:
        try:
            if entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                _remove_unlocked(Path(entry.path))
        except OSError:
            continue  # it is gone, or somebody's


def _remove_unlocked(folder: Path) -> None:
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
