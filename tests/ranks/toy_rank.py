"""A rank with the toy model, in a process of its own: `python -m tests.ranks.toy_rank FD {"step": "error"} VOCABULARY`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace

from tgi_core.backend import BackendError, Capabilities, Group, Kernel, errors, hookimpl
from tgi_core.backend.reference import ReferenceSession
from tgi_core.backend.session import Session
from tgi_core.errors import StartupError
from tgi_core.server.rank_link import Link, LinkClosed
from tgi_core.server.rank_peers import Peer
from tgi_core.server.rank_process import RankProcess
from tgi_core.server.ranks import follow

VOCABULARY = 64


class ToySession(ReferenceSession):
    """The toy model, computed step by step as it is told."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Blocks of four tokens, and kernels that each process explains in words of its own."""
        kernel = Kernel("step", "toy", f"built by process {os.getpid()}")
        return replace(super().capabilities(), block_sizes=(4,), kernels=(kernel,))


def toy(faults: Mapping[int, str] | None = None, vocabulary: int = VOCABULARY) -> ToySession:
    """A toy that fails at the given steps with the errors of those names."""
    raised: dict[int, BackendError] = {step: getattr(errors, name)("as told") for step, name in (faults or {}).items()}
    return ToySession(vocabulary, 128, faults=raised)


def toy_session(faults: Mapping[int, str] | None = None, vocabulary: int = VOCABULARY) -> Session:
    """A session over a toy."""
    return Session(toy(faults, vocabulary), "toy")


def start_toy(rank: int, faults: Mapping[int, str] | None = None, vocabulary: int = VOCABULARY) -> tuple[Peer, int]:
    """A rank in a process of its own, and the process's id."""
    ours, theirs = socket.socketpair()
    with theirs:
        arguments = [str(theirs.fileno()), json.dumps(faults or {}), str(vocabulary)]
        child = subprocess.Popen([sys.executable, "-m", "tests.ranks.toy_rank", *arguments], pass_fds=(theirs.fileno(),))
    return Peer(rank, Link(ours), RankProcess(child)), child.pid


def main() -> None:
    """Follow."""
    number, faults, vocabulary = int(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])

    def open_session(group: Group) -> Session:
        return toy_session({int(step): name for step, name in faults.items()}, vocabulary)

    try:
        follow(Link(socket.socket(fileno=number)), open_session)
    except (BackendError, StartupError, LinkClosed):
        sys.exit(1)


if __name__ == "__main__":
    main()
