"""The address on which a shard listens: a unix socket in a folder of its own, or a TCP port.

A client that can connect to a shard can read its users' prompts. So a socket lives in a folder that only the shard's user can
enter, and a port requires a token.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tgi_core.errors import StartupError

_LONGEST_PATH = 107


def prepare_unix(path: Path, shared: bool = False) -> str:
    """Create the folder of a socket and remove a stale socket. Return gRPC's address for it. Raises StartupError.

    `shared`: the folder may be one like /tmp, as TGI's is, where the mode of the socket keeps others out; see `bound_for_us_alone`.
    """
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise StartupError(f"{path}: longer than the {_LONGEST_PATH} bytes that the path of a socket may have")
    if not (shared and _is_sticky(path.parent)):
        _check_folder(path.parent)
    _remove_stale(path)
    return f"unix:{path}"


@contextmanager
def bound_for_us_alone() -> Generator[None, None, None]:
    """Within this block, create sockets to which only this user can connect."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def check_socket(address: str) -> None:
    """Check that the socket is ours: in a folder like /tmp, any user can create one to intercept requests. Raises StartupError."""
    if not address.startswith("unix:"):
        return
    path = Path(address.removeprefix("unix:"))
    try:
        owner = path.stat().st_uid
    except OSError as error:
        raise StartupError(f"shard at {address}: {error.strerror}") from error
    if owner not in (0, os.geteuid()):
        raise StartupError(f"shard at {address}: the socket is another user's")


def prepare_tcp(host: str, port: int) -> str:
    """Return gRPC's address for a port; `tgi_core.shard_access` controls access to it. Raises StartupError."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError as error:
        raise StartupError(f"{host}: not an IP address") from error
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _is_sticky(folder: Path) -> bool:
    """Return whether other users can create files in the folder, but cannot remove ours (the sticky bit)."""
    return folder.is_dir() and bool(folder.stat().st_mode & stat.S_ISVTX)


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise StartupError(f"{folder}: no folder for a socket: {error.strerror}") from error
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise StartupError(f"{folder}: others can enter it; give the socket a folder of its own, with mode 0700")


def _remove_stale(path: Path) -> None:
    """Remove a stale socket. Raises StartupError if a process listens on it, or if it is not a socket."""
    if not path.exists():
        return
    if not path.is_socket():
        raise StartupError(f"{path}: exists, and is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                path.unlink(missing_ok=True)
                return
            raise StartupError(f"{path}: {error.strerror}") from error
    raise StartupError(f"{path}: another shard listens there")
