"""The command line: `tgi serve` and related commands.

Commands are imported when invoked, so `tgi --help` loads neither the router nor a model library.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

import click

from tgi_core import __version__
from tgi_core.cli.first_process import step_aside
from tgi_core.cli.streams import give_up_stdout, keep_standard_streams
from tgi_core.errors import StartupError

_COMMANDS = {
    "backends": "List the installed backends and the devices they detect.",
    "bench": "Measure a server of TGI's or OpenAI's API, and compare results.",
    "chat": "Chat with a server or a model in the terminal.",
    "check": "Say whether a model fits and how it would run, before it is loaded.",
    "completion": "Print a shell completion script.",
    "config": "Show the settings and their origins.",
    "download-weights": "Download a model from the Hugging Face Hub into the cache.",
    "quantize": "Write a copy of a model with quantized weights.",
    "router": "Serve the HTTP API for a shard that is already running.",
    "serve": "Serve a model: a directory or a Hugging Face Hub id.",
    "shard": "Run a model on a socket for a separate router.",
}


class _Commands(click.Group):
    """Loads each command from this package's module of the same name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"tgi_core.cli.{cmd_name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tgi")
def tgi() -> None:
    """Serve large language models with the API of text-generation-inference (TGI); hardware backends are plugins."""


def main() -> None:
    """Entry point of `tgi`."""
    run(tgi, "tgi")


def run(command: Callable[[], object], name: str) -> None:
    """Run a command. A StartupError or an unhandled OSError is printed as one line, and the exit status is 1."""
    keep_standard_streams()
    step_aside()
    # read when grpc is imported; at its default, gRPC logs every closed connection
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        try:
            command()
        finally:
            sys.stdout.flush()
    except StartupError as error:
        _end(name, str(error))
    except BrokenPipeError:  # the reader of the output has closed it, for example `head`
        give_up_stdout()
        sys.exit(1)
    except OSError as error:
        logging.getLogger(__name__).debug("unhandled OSError", exc_info=error)
        give_up_stdout()
        _end(name, f"{error.filename or 'input or output'}: {error.strerror or error}")


def _end(name: str, reason: str) -> NoReturn:
    from tgi_core.telemetry.logs import log_fatal_error

    log_fatal_error(f"{name}: error: {reason}")
    sys.exit(1)
