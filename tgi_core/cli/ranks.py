"""Opening a model that is split over ranks. Rank 0 starts the other ranks, or waits for ranks that were started separately."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tgi_core.backend import BackendError, Group, OpenOptions, Processes, Progress
from tgi_core.backend.probe import probe
from tgi_core.backend.registry import Plugin, open_backend
from tgi_core.backend.session import Session
from tgi_core.cli.open_options import open_options
from tgi_core.cli.shard_flags import shard_flags
from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.run_folder import RunFolder
from tgi_core.server.rank_link import Link, LinkClosed, accept, join
from tgi_core.server.rank_peers import Peer, Peers
from tgi_core.server.rank_place import Place, ReplicaPlace
from tgi_core.server.rank_process import RankProcess
from tgi_core.server.ranks import follow, lead
from tgi_core.shard_access import demanded_token
from tgi_core.workers.command import python

_log = logging.getLogger(__name__)

_OWN_VARIABLES = frozenset({"TGI_CONFIG", "NUM_SHARD", "SHARDED", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})
"""Environment variables that ranks started by rank 0 must not inherit; rank 0 passes these settings as flags."""


def open_ranks(
    plugin: Plugin,
    options: OpenOptions,
    settings: Settings,
    show: Progress,
    place: Place | None = None,
    lost: Callable[[], None] | None = None,
    replica: ReplicaPlace = ReplicaPlace(),  # noqa: B008  frozen
) -> object:
    """Open a backend's session on all ranks; the settings, or `place`, determine their number. `lost` is called from another thread
    when a rank is lost. Raises StartupError, BackendError."""
    count = place.world if place is not None else num_ranks(settings, plugin)
    whole = Group(world=count, local_rank=replica.number * count, local_world=replica.count * count)
    if count == 1 or (plugin.manifest is not None and plugin.manifest.processes is Processes.ONE):
        return open_backend(plugin, replace(options, group=whole), show)

    def open_own(group: Group) -> object:
        return open_backend(plugin, replace(options, group=group), show)

    if place is not None:
        return lead(_awaited(settings, place, lost), plugin.name, open_own)
    folder = RunFolder("ranks")
    try:
        group = replace(whole, rendezvous=f"file:{folder.path / 'store'}")
        return lead(_started(plugin, Path(options.model), settings, group, lost), plugin.name, open_own)
    finally:
        folder.remove()  # rendezvous is complete


def num_ranks(settings: Settings, plugin: Plugin) -> int:
    """Number of ranks requested. Raises StartupError."""
    if not settings.sharded or (settings.num_shard or 0) > 1:
        return settings.num_shard or 1
    if settings.num_shard == 1:
        raise StartupError("--sharded and --num-shard 1 contradict each other; remove one of the two")
    devices = len(probe(plugin).devices)
    if devices < 2:
        raise StartupError(
            f"--sharded: needs at least two devices, backend {plugin.name} found {devices}; set --num-shard to the number of ranks"
        )
    return devices


def follow_rank0(link: Link, directory: Path, plugin: Plugin, settings: Settings, place: Place | None = None) -> None:
    """Run as a rank other than 0 until rank 0 ends the group. Exits with status 1 if rank 0 is lost or this rank fails."""

    def open_session(group: Group) -> Session:
        if place is not None:
            group = replace(group, local_rank=place.local_rank, local_world=place.local_world)
        options = replace(open_options(directory, settings), group=group)
        return Session(open_backend(plugin, options, lambda what, done, total, unit: None), plugin.name, built=plugin.built)

    # rank 0 already logs what is the same on all ranks
    logging.getLogger().setLevel(max(logging.WARNING, logging.getLogger().level))

    def say_lost() -> None:
        if place is not None:  # nobody else on this machine says it
            _log.error("rank %d: rank 0 is gone (--master-addr %s); its log says why", place.rank, settings.master_addr)

    try:
        follow(link, open_session, say_lost)
    except LinkClosed:
        say_lost()
        sys.exit(1)
    except (BackendError, StartupError):
        sys.exit(1)  # rank 0 reports the error


def inherited(number: int) -> Link:
    """Connection to the rank 0 that started this process. Ignores SIGINT and SIGTERM: Ctrl-C reaches both processes, and rank 0
    still has requests to finish."""
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, signal.SIG_IGN)
    return Link(socket.socket(fileno=number))


def joined(settings: Settings, place: Place) -> Link:
    """Connect to a rank 0 that was started separately. Raises StartupError."""
    return join(settings.master_addr, settings.master_port + 1, place.rank, _token(settings))


def _awaited(settings: Settings, place: Place, lost: Callable[[], None] | None) -> Peers:
    links = accept(settings.master_addr, settings.master_port + 1, place.world, _token(settings))
    rendezvous = f"{settings.master_addr}:{settings.master_port}"
    group = Group(0, place.world, rendezvous, place.local_rank, place.local_world)
    return Peers({rank: Peer(rank, link) for rank, link in links.items()}, group, lost)


def check_address(settings: Settings, place: Place) -> None:
    """Check that ranks on other machines can reach rank 0's address. Raises StartupError."""
    if place.local_world == place.world:
        return
    host = settings.master_addr
    try:
        address = socket.getaddrinfo(host, settings.master_port, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise StartupError(f"--master-addr {host}: {error.strerror}; use rank 0's address in the network of the ranks") from error
    if ipaddress.ip_address(str(address).partition("%")[0]).is_loopback:
        raise StartupError(
            f"--master-addr {host}: is {address} on this machine, which ranks on other machines cannot reach; use rank 0's address in "
            "the network of the ranks"
        )


def _token(settings: Settings) -> str:
    """Secret that ranks on TCP use to authenticate each other; empty if none is required. Raises StartupError."""
    return demanded_token(settings, os.environ, f"a group of ranks on TCP (--master-addr {settings.master_addr})") or ""


def _started(plugin: Plugin, directory: Path, settings: Settings, group: Group, lost: Callable[[], None] | None) -> Peers:
    """Start the other ranks on this machine. They die with the calling thread."""
    peers = {rank: _start(plugin, directory, settings, rank) for rank in range(1, group.world)}
    return Peers(peers, group, lost)


def _start(plugin: Plugin, directory: Path, settings: Settings, rank: int) -> Peer:
    ours, theirs = socket.socketpair()
    arguments = shard_flags(replace(settings, num_shard=None, sharded=None, backend=plugin.name))
    command = python("tgi_core", "shard", directory, *arguments)
    with theirs:
        child = subprocess.Popen(
            [*command, "--backend", plugin.name, "--follow", str(theirs.fileno()), "--parent", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES},
            pass_fds=(theirs.fileno(),),
        )
    return Peer(rank, Link(ours), RankProcess(child))
