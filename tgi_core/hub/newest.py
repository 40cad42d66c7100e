"""Which commit of a repository is served: the hub's newest, or that of the cache where the hub need not or cannot be asked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from tgi_core.errors import StartupError
from tgi_core.hub.refusals import Unreachable
from tgi_core.hub.remote import Listing, Remote

_log = logging.getLogger(__name__)


def newest(remote: Remote, complete: Callable[[Path], bool], download: Callable[[Listing], Path], remedy: str) -> Path:
    """The directory of the revision in the cache, fetched if it is not there. `complete` says whether a directory has everything,
    `download` fetches what a commit has; `remedy` says what to do where that is impossible. Raises StartupError."""
    directory = remote.cached()
    if remote.offline or (directory is not None and directory.name == remote.revision and complete(directory)):
        return _from_cache(remote, directory, complete, "HF_HUB_OFFLINE is set", remedy)
    try:
        listing = remote.listing()
        directory = download(listing)
        remote.remember(listing)
    except Unreachable as error:
        directory = remote.cached()  # not the one that was begun just now
        if directory is not None and complete(directory):
            _log.warning("%s; serving commit %s from the cache", error, directory.name)
        return _from_cache(remote, directory, complete, str(error), remedy)
    return directory


def _from_cache(remote: Remote, directory: Path | None, complete: Callable[[Path], bool], why: str, remedy: str) -> Path:
    if directory is not None and complete(directory):
        return directory
    what = f"{remote.kind} {remote.model}" + (f" at revision {remote.revision}" if remote.revision else "")
    state = "not in" if directory is None else "incomplete in"
    raise StartupError(f"{what}: {state} the cache {remote.cache}, and {why}; {remedy}")
