"""`tgi shard`: run a model on a socket for a router in another process or on another machine."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tgi_core.cli.fault_injection import fault_rules
from tgi_core.cli.options import Resolved, SettingsCommand, settings_options, with_model
from tgi_core.cli.settings_review import review
from tgi_core.config import Scope, Settings, settings_in
from tgi_core.errors import StartupError
from tgi_core.model_files import DEMO
from tgi_core.run_folder import RunFolder, end_at_once
from tgi_core.telemetry.logs import set_up
from tgi_core.telemetry.progress import progress

if TYPE_CHECKING:
    from tgi_core.backend import Progress
    from tgi_core.server.grpc_host import Model
    from tgi_core.server.rank_place import Place, ReplicaPlace

_log = logging.getLogger(__name__)

_CLOSE_S = 5.0
_TELL_EVERY_S = 0.1
_LAST_WORDS_S = 0.5
"""Seconds for an error to reach the router before the shard ends."""


@click.command("shard", cls=SettingsCommand)
@click.argument("model", required=False)
@click.option(
    "--uds-path", type=click.Path(path_type=Path), help="Unix socket to listen on, in a directory that only this user can access."
)
@click.option("--listen", "port", metavar="HOST:PORT", help="TCP address to listen on, instead of a Unix socket.")
@click.option("--parent", type=int, hidden=True, help="Exit when this process, which started the shard, exits.")
@click.option("--follow", type=int, hidden=True, help="Run as another rank of the parent, connected through this socket.")
@click.option("--steps", type=int, hidden=True, help="Receive the parent's turns on this socket.")
@click.option("--ranked", is_flag=True, hidden=True, help="Take the rank from RANK and WORLD_SIZE despite --parent.")
@click.option("--replica", hidden=True, help="Run as replica NUMBER/COUNT of the parent's model.")
@settings_options(only=settings_in(Scope.SHARD))
def command(
    model: str | None,
    uds_path: Path | None,
    port: str | None,
    parent: int | None,
    follow: int | None,
    steps: int | None,
    ranked: bool,
    replica: str | None,
    resolved: Resolved,
) -> None:
    """Run the shard of MODEL and print `listening: ADDRESS`. Default address: a Unix socket in a new directory.

    With --num-shard, the model is split over several processes, which this one starts. If RANK and WORLD_SIZE are set, as by
    torchrun, this process is that rank: rank 0 listens for routers, the others connect to rank 0.
    """
    from tgi_core.server.rank_place import ReplicaPlace, own_place

    settings = with_model(model, resolved)
    if parent is not None:
        from tgi_core.server.process import die_with

        die_with(parent)
    place = own_place(os.environ, settings.num_shard) if parent is None or ranked else None
    if place is not None and not ranked:  # where a router has placed the ranks, they reach each other
        from tgi_core.cli.ranks import check_address

        check_address(settings, place)
    if follow is not None or (place is not None and place.rank):
        run_follower(settings, follow, place)
    else:
        replica_place = ReplicaPlace() if replica is None else ReplicaPlace.parse(replica)
        run(settings, _address(uds_path, port), parent is not None, place, steps, replica_place)


def run_follower(settings: Settings, inherited_socket: int | None, place: Place | None) -> None:
    """Run as a rank other than 0: of the parent, through an inherited socket, or of a rank 0 started separately. Raises
    StartupError."""
    from tgi_core.cli.ranks import follow_rank0, inherited, joined
    from tgi_core.cli.shard_openers import choose_backend
    from tgi_core.cli.weights import fetch_models

    set_up(settings.json_output)
    plugin = choose_backend(settings.backend)
    if inherited_socket is not None:
        follow_rank0(inherited(inherited_socket), Path(settings.model_id or DEMO), plugin, settings)
    elif place is not None:
        directory, settings = fetch_models(settings.model_id or str(DEMO), settings, lambda what, done, total, unit: None)
        follow_rank0(joined(settings, place), directory, plugin, settings, place)


def run(
    settings: Settings,
    address: str,
    has_parent: bool = False,
    place: Place | None = None,
    steps: int | None = None,
    replica: ReplicaPlace | None = None,
) -> None:
    """Serve routers until stopped by a signal or by the parent, whose turns may use a separate socket, `steps`. Raises
    StartupError. Exits with status 1 if the device or another rank is lost, so that a supervisor restarts it."""
    from tgi_core.cli.weights import fetch_models
    from tgi_core.server.grpc_host import ShardHost
    from tgi_core.server.grpc_server import ShardServer
    from tgi_core.server.steps_link import StepsLink
    from tgi_core.shard_access import access_of_shard

    set_up(settings.json_output)
    fault_rules(settings)  # report mistakes before reading the model
    if not has_parent:  # a parent has already logged it
        for line in review(settings, {}):
            _log.warning("%s", line)
    stop, lost = threading.Event(), threading.Event()

    def lose() -> None:
        lost.set()
        threading.Timer(_LAST_WORDS_S, stop.set).start()

    host = ShardHost(lose)
    server = ShardServer(host, address, access_of_shard(settings, os.environ, address))
    server.start()
    link = None if steps is None else StepsLink(socket.socket(fileno=steps), server.tenancy)
    if link is not None:
        link.start()
    click.echo(f"listening: {server.address}")
    sys.stdout.flush()
    try:
        with progress(_ProgressLines() if has_parent else None) as show:
            host.report_to(show)
            with host.finding():
                directory, found = fetch_models(settings.model_id or str(DEMO), settings, host.show)
            _listen_for_the_end(stop, has_parent)
            opening = host.open(lambda: _read(directory, found, host.show, lose, place, replica))
            opening.add_done_callback(lambda done: stop.set() if done.exception() is not None else None)
            stop.wait()
    finally:
        if link is not None:
            link.close()
        server.stop(_LAST_WORDS_S if host.failed else None)
    in_time = host.close(_CLOSE_S)
    if opening.done() and (error := opening.exception()) is not None:
        raise error
    if lost.is_set():
        _log.error("the device or another rank failed")
        end_at_once(1)  # closing a lost device might hang
    if not in_time:  # the thread of a hung device would keep this process alive
        _log.error("the backend did not close within %.0f s", _CLOSE_S)
        end_at_once(1)


def _read(
    directory: Path,
    settings: Settings,
    show: Progress,
    lost: Callable[[], None],
    place: Place | None,
    replica: ReplicaPlace | None,
) -> Model:
    """Open the model on all ranks, and hash its tokenizer for routers to compare. Raises StartupError."""
    from tgi_core.cli.collector import settle
    from tgi_core.cli.shard_openers import open_model
    from tgi_core.client.connecting import hash_tokenizer
    from tgi_core.server.grpc_host import Model
    from tgi_core.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(directory)
    server = open_model(directory, tokenizer, settings, show, place, lost, replica)
    settle()
    return Model(server, tokenizer, hash_tokenizer(directory))


def _address(uds_path: Path | None, port: str | None) -> str:
    from tgi_core.server.grpc_address import prepare_tcp, prepare_unix

    if uds_path is not None and port is not None:
        raise StartupError("--uds-path and --listen: give only one of the two")
    if port is None:
        return prepare_unix(uds_path or RunFolder("shard").path / "shard")
    host, _, number = port.rpartition(":")
    if not number.isdecimal():
        raise StartupError(f"--listen {port}: must be HOST:PORT")
    return prepare_tcp(host.strip("[]"), int(number))


def _listen_for_the_end(stop: threading.Event, has_parent: bool) -> None:
    """Set `stop` on a signal or when the parent ends. A child ignores signals: Ctrl-C reaches the parent too, which still has
    requests to finish."""
    from tgi_core.server.process import watch_parent

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN if has_parent else lambda *_: stop.set())
    if has_parent:
        watch_parent(stop.set)


class _ProgressLines:
    """Prints progress for the parent, at most ten lines per second for each task."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def __call__(self, what: str, done: int, total: int, unit: str) -> None:
        """Print a line, unless the last one is too recent."""
        from tgi_core.client.child import PROGRESS

        now = time.monotonic()
        if done >= total or now - self._last.get(what, 0.0) >= _TELL_EVERY_S:
            self._last[what] = now
            print(PROGRESS + json.dumps([what, done, total, unit]), flush=True)
