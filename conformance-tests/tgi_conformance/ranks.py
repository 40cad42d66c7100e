"""Two ranks over loopback as one session: rank 0 in this process, rank 1 in another, joined by the core's own relay.

`python -m tgi_conformance.ranks FD NAME` serves as rank 1 of one group after another.
"""

from __future__ import annotations

import json
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

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
_SETTINGS_BYTES = 8192


@dataclass(frozen=True, slots=True)
class _Child:
    """A process that is rank 1, and the socket that sends it its groups."""

    process: RankProcess
    control: socket.socket

    @classmethod
    def start(cls, name: str) -> Self:
        ours, theirs = socket.socketpair()
        with theirs:
            child = subprocess.Popen(
                python("tgi_conformance.ranks", theirs.fileno(), name),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=same_imports(),
                stderr=subprocess.DEVNULL,  # rank 0 receives and reports its errors
            )
        return cls(RankProcess(child), ours)


class SecondRank:
    """Rank 1 of a run's groups, as a `rank_peers.Process`.

    Its process serves one group after another, because importing what runs a model takes seconds. It starts on first use, and again
    after being killed or failing.
    """

    def __init__(self) -> None:
        self._child: _Child | None = None
        self._serving = False

    def join(self, target: Target) -> Peer:
        """Join a new group as rank 1."""
        if self._child is None or self._serving or self._child.process.outcome(0) is not None:
            self.close()
            self._child = _Child.start(target.name)
        ours, theirs = socket.socketpair()
        settings = json.dumps([str(target.model), target.dtype]).encode()
        with theirs:
            socket.send_fds(self._child.control, [settings], [theirs.fileno()])
        self._serving = True
        return Peer(1, Link(ours), self)

    def outcome(self, seconds: float) -> str | None:
        """Return how rank 1 left the group, or None while it takes part."""
        if self._child is None:
            return "was ended"
        if self._serving:
            with selectors.DefaultSelector() as ready:
                ready.register(self._child.control, selectors.EVENT_READ)
                if not ready.select(seconds):
                    return None
            self._serving = not self._child.control.recv(1)  # empty if the process has ended
        return self._child.process.outcome(1.0) if self._serving else "ended with its group"

    def kill(self) -> None:
        """End the process, unless it has left its group and waits for the next one."""
        if self._serving:
            self.close()

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.control.close()
            self._child.process.kill()
        self._child, self._serving = None, False


def open_group(target: Target, second: SecondRank) -> object:
    """Open a session across all ranks. Raises BackendError, Violation.

    A backend that runs all ranks in one process is opened only once.
    """
    if target.one_process:
        return target.open(OpenOptions(str(target.model), target.dtype, Group(world=WORLD, local_world=WORLD)))
    folder = Path(tempfile.mkdtemp(prefix="tgi-conformance-"))
    peers = Peers({1: second.join(target)}, Group(0, WORLD, f"file:{folder / 'store'}", 0, WORLD))
    try:
        return lead(peers, target.name, lambda group: target.open(OpenOptions(str(target.model), target.dtype, group)))
    except StartupError as error:
        raise Violation("ranks", f"two ranks did not open: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # by now the ranks have connected


def main(control: socket.socket, name: str) -> None:
    """Follow rank 0 through its groups until there are no more or an error occurs, which rank 0 reports."""
    while True:
        settings, descriptors, _, _ = socket.recv_fds(control, _SETTINGS_BYTES, 1)
        if not descriptors:
            return
        try:
            _follow(Link(socket.socket(fileno=descriptors[0])), name, *json.loads(settings))
        except (LinkClosed, BackendError, StartupError):
            return
        control.send(b"\n")


def _follow(link: Link, name: str, model: str, dtype: str) -> None:
    from tgi_conformance.subject import resolve

    target = resolve(name, Path(model), dtype).target

    def open_session(group: Group) -> Session:
        return target.wrapped(target.open(OpenOptions(model, dtype, group)))

    follow(link, open_session)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
