"""Two ranks over loopback, as one session: rank 0 here, rank 1 in a process of its own, joined by the core's own relay.

`python -m tgi_conformance.ranks FD NAME` is rank 1 of one group after another.
"""

from __future__ import annotations

import json
import selectors
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
_SETTINGS_BYTES = 8192


class SecondRank:
    """Rank 1 of a run's groups, a `rank_peers.Process`. Its process serves one group after another: importing what runs a model
    takes seconds. It is started when first needed, and again after one that was killed or failed."""

    def __init__(self) -> None:
        self._process: RankProcess | None = None
        self._control = socket.socket()
        self._serving = False

    def join(self, target: Target) -> Peer:
        """Rank 1 of a new group."""
        if self._process is None or self._serving or self._process.outcome(0) is not None:
            self.close()
            self._start(target.name)
        ours, theirs = socket.socketpair()
        settings = json.dumps([str(target.model), target.dtype]).encode()
        with theirs:
            socket.send_fds(self._control, [settings], [theirs.fileno()])
        self._serving = True
        return Peer(1, Link(ours), self)

    def outcome(self, seconds: float) -> str | None:
        """How its part in the group has ended; None while it goes on."""
        if self._process is None:
            return "was ended"
        if self._serving:
            with selectors.DefaultSelector() as ready:
                ready.register(self._control, selectors.EVENT_READ)
                if not ready.select(seconds):
                    return None
            self._serving = not self._control.recv(1)  # nothing: the process has ended
        return self._process.outcome(1.0) if self._serving else "ended with its group"

    def kill(self) -> None:
        """End the process, unless it has left its group and waits for the next."""
        if self._serving:
            self.close()

    def close(self) -> None:
        """End the process."""
        self._control.close()
        if self._process is not None:
            self._process.kill()
        self._process, self._serving = None, False

    def _start(self, name: str) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            child = subprocess.Popen(
                python("tgi_conformance.ranks", theirs.fileno(), name),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=same_imports(),
                stderr=subprocess.DEVNULL,  # rank 0 hears of its errors, and reports them
            )
        self._process = RankProcess(child)


def open_group(target: Target, second: SecondRank) -> object:
    """The session of all ranks. A backend that keeps them in one process is opened once. Raises BackendError, Violation."""
    if target.one_process:
        return target.open(OpenOptions(str(target.model), target.dtype, Group(world=WORLD, local_world=WORLD)))
    folder = Path(tempfile.mkdtemp(prefix="tgi-conformance-"))
    peers = Peers({1: second.join(target)}, Group(0, WORLD, f"file:{folder / 'store'}", 0, WORLD))
    try:
        return lead(peers, target.name, lambda group: target.open(OpenOptions(str(target.model), target.dtype, group)))
    except StartupError as error:
        raise Violation("ranks", f"two ranks did not open: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # the ranks have met


def main(control: socket.socket, name: str) -> None:
    """Follow rank 0 through its groups until there are no more, or an error: rank 0 knows that, and tells it."""
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
