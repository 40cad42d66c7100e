"""Two ranks over loopback, as one session: rank 0 here, rank 1 in a process of its own, joined by the core's own relay.

`python -m tgi_conformance.ranks FD NAME MODEL DTYPE` is rank 1.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tgi_conformance.target import Target
from tgi_conformance.verdict import Violation
from tgi_core.backend import BackendError, Group, OpenOptions
from tgi_core.backend.session import Session
from tgi_core.errors import StartupError
from tgi_core.server.rank_link import Link, LinkClosed
from tgi_core.server.rank_peers import Peer, Peers
from tgi_core.server.rank_process import RankProcess
from tgi_core.server.ranks import follow, lead
from tgi_core.workers.command import python, same_imports

WORLD = 2


def open_group(target: Target) -> object:
    """The session of all ranks. A backend that keeps them in one process is opened once. Raises BackendError, Violation."""
    if target.one_process:
        return target.open(OpenOptions(str(target.model), target.dtype, Group(world=WORLD, local_world=WORLD)))
    folder = Path(tempfile.mkdtemp(prefix="tgi-conformance-"))
    peers = Peers({1: _start(target)}, Group(0, WORLD, f"file:{folder / 'store'}", 0, WORLD))
    try:
        return lead(peers, target.name, lambda group: target.open(OpenOptions(str(target.model), target.dtype, group)))
    except StartupError as error:
        raise Violation("ranks", f"two ranks did not open: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # the ranks have met


def _start(target: Target) -> Peer:
    ours, theirs = socket.socketpair()
    command = python("tgi_conformance.ranks", theirs.fileno(), target.name, target.model, target.dtype)
    with theirs:
        child = subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=same_imports(),
            stderr=subprocess.DEVNULL,  # rank 0 is told and says it
        )
    return Peer(1, Link(ours), RankProcess(child))


def main(number: int, name: str, model: Path, dtype: str) -> None:
    """Follow until rank 0 says goodbye."""
    from tgi_conformance.subject import resolve

    target = resolve(name, model, dtype).target

    def open_session(group: Group) -> Session:
        return target.wrapped(target.open(OpenOptions(str(model), dtype, group)))

    with contextlib.suppress(LinkClosed, BackendError, StartupError):  # rank 0 knows and tells it
        follow(Link(socket.socket(fileno=number)), open_session)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4])
