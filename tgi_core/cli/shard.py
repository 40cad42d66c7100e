"""`tgi shard`: a model behind a socket, for a router in another process or on another machine."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tgi_core.cli.options import Resolved, SettingsCommand, settings_options
from tgi_core.cli.serve import named
from tgi_core.config import Settings, flag
from tgi_core.errors import StartupError
from tgi_core.model_files import DEMO
from tgi_core.telemetry.logs import set_up
from tgi_core.telemetry.progress import progress

if TYPE_CHECKING:
    from tgi_core.backend import Progress
    from tgi_core.server.grpc_host import Model

_log = logging.getLogger(__name__)

SETTINGS = frozenset(
    {
        *("model_id", "revision", "dtype", "quantize", "trust_remote_code"),
        *("huggingface_hub_cache", "weights_cache_override", "auto_convert"),
        *("backend", "memory_fraction", "cuda_memory_fraction"),
        *("disable_grammar_support", "json_output"),
    }
)
"""What a shard is started with; limits come from its router."""

_CLOSE_S = 5.0


@click.command("shard", cls=SettingsCommand)
@click.argument("model", required=False)
@click.option("--uds-path", type=click.Path(path_type=Path), help="Socket to listen on; its folder is for this user alone.")
@click.option("--listen", "port", metavar="HOST:PORT", help="TCP address to listen on, in place of a socket.")
@click.option("--parent", type=int, hidden=True, help="End with this process, the one that has started the shard.")
@settings_options(only=SETTINGS)
def command(model: str | None, uds_path: Path | None, port: str | None, parent: int | None, resolved: Resolved) -> None:
    """Run the shard of MODEL; it prints `listening: ADDRESS`. Without an address, on a socket in a new folder."""
    if parent is not None:
        from tgi_core.server.process import die_with

        die_with(parent)
    run(named(model, resolved), _address(uds_path, port), parent is not None)


def run(settings: Settings, address: str, has_parent: bool = False) -> None:
    """Serve routers until told to stop: by a signal, or by the parent. Raises StartupError."""
    from tgi_core.cli.weights import fetch_model
    from tgi_core.server.grpc_address import TOKEN_VARIABLE
    from tgi_core.server.grpc_host import ShardHost
    from tgi_core.server.grpc_server import ShardServer

    set_up(settings.json_output)
    host = ShardHost()
    server = ShardServer(host, address, os.environ.get(TOKEN_VARIABLE) or None)
    server.start()
    click.echo(f"listening: {server.address}")
    sys.stdout.flush()
    try:
        with nullcontext() if has_parent else progress() as line:
            show = _both(host.show, line)
            directory = fetch_model(settings.model_id or str(DEMO), settings, show)
            stop = _told_to_stop(has_parent)
            opening = host.open(lambda: open_model(directory, settings, show))
            opening.add_done_callback(lambda done: stop.set() if done.exception() is not None else None)
            stop.wait()
    finally:
        server.stop()
    in_time = host.close(_CLOSE_S)
    if opening.done() and (error := opening.exception()) is not None:
        raise error
    if not in_time:  # a device that hangs would keep its thread, and that this process
        _log.error("the backend did not close within %.0f s", _CLOSE_S)
        os._exit(1)


def open_model(directory: Path, settings: Settings, show: Progress) -> Model:
    """Open the backend on a model. Raises StartupError."""
    from tgi_core.backend import API_VERSION, BackendError, OpenOptions
    from tgi_core.backend.registry import open_backend
    from tgi_core.backend.session import Session
    from tgi_core.backend.wrappers import Trace
    from tgi_core.cli.serving import choose_backend, open_masks
    from tgi_core.client.connecting import hash_tokenizer
    from tgi_core.client.types import ShardInfo
    from tgi_core.server.grpc_host import Model
    from tgi_core.server.model_server import ModelServer
    from tgi_core.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(directory)
    plugin = choose_backend(settings.backend)
    masks = open_masks(directory, tokenizer, settings)
    memory_fraction = settings.memory_fraction * settings.cuda_memory_fraction
    options = OpenOptions(str(directory), settings.dtype, masks=masks, memory_fraction=memory_fraction)
    try:
        session = Session(open_backend(plugin, options, show), plugin.name, wrappers=(Trace(),))
        info = ShardInfo(directory.name, plugin.name, plugin.device_kind, settings.dtype, API_VERSION, session.capabilities())
    except BackendError as error:
        raise StartupError(f"backend {plugin.name}: {error}") from error
    return Model(ModelServer(session, tokenizer, info, masks), tokenizer, hash_tokenizer(directory))


def shard_arguments(settings: Settings) -> list[str]:
    """The flags that give a child the settings of this process; the model and the backend are the caller's to name."""
    arguments: list[str] = []
    for spec in fields(Settings):
        value = getattr(settings, spec.name)
        if spec.name not in SETTINGS - {"model_id", "backend"} or value is None:
            continue
        if isinstance(value, bool):
            arguments.append(flag(spec.name) if value else f"--no-{flag(spec.name)[2:]}")
        else:
            arguments += [flag(spec.name), str(value)]
    return arguments


def _address(uds_path: Path | None, port: str | None) -> str:
    from tgi_core.server.grpc_address import TOKEN_VARIABLE, prepare_tcp, prepare_unix

    if uds_path is not None and port is not None:
        raise StartupError("--uds-path and --listen: two addresses; give one")
    if port is None:
        return prepare_unix(uds_path or _new_folder() / "shard")
    host, _, number = port.rpartition(":")
    if not number.isdecimal():
        raise StartupError(f"--listen {port}: give HOST:PORT")
    return prepare_tcp(host.strip("[]"), int(number), os.environ.get(TOKEN_VARIABLE))


def _new_folder() -> Path:
    """For one socket; it goes with the process."""
    folder = Path(tempfile.mkdtemp(prefix="tgi-shard-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _told_to_stop(has_parent: bool) -> threading.Event:
    """Set when it is time. A child leaves signals to its parent: a Ctrl-C reaches both, and the parent has requests to finish."""
    from tgi_core.server.process import watch_parent

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN if has_parent else lambda *_: stop.set())
    if has_parent:
        watch_parent(stop.set)
    return stop


def _both(first: Progress, second: Progress | None) -> Progress:
    """Progress for routers that ask, and for whoever reads our lines."""

    def show(what: str, done: int, total: int, unit: str) -> None:
        first(what, done, total, unit)
        if second is not None:
            second(what, done, total, unit)

    return show
