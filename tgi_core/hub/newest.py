"""Choosing the commit of a repository to serve: the Hub's newest, or the cached one if the Hub is not needed or unreachable."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from tgi_core.errors import StartupError
from tgi_core.hub.refusals import Unreachable
from tgi_core.hub.remote import Listing, Remote

_log = logging.getLogger(__name__)


def newest(remote: Remote, complete: Callable[[Path], bool], download: Callable[[Listing], Path], remedy: str) -> Path:
    """Return the cached directory of the revision, downloading it if needed.

    `complete` checks whether a directory has all files, `download` fetches a commit, and `remedy` is the advice in the error if the
    Hub cannot be used. Raises StartupError.
    """
    directory = remote.cached()
    if remote.offline or (directory is not None and directory.name == remote.revision and complete(directory)):
        return _from_cache(remote, directory, complete, "HF_HUB_OFFLINE is set", remedy)
    try:
        listing = remote.listing()
        directory = download(listing)
        remote.remember(listing)
    except Unreachable as error:
        directory = remote.cached()  # not a download just started
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
