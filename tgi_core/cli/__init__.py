"""The command line: `tgi serve` and its companions.

Each command is imported when it is called, so that `tgi --help` loads neither the router nor a model library.
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
    "backends": "List the installed backends and what they find on this machine.",
    "completion": "Print a script that completes commands and flags in a shell.",
    "config": "Show the settings, and where each comes from.",
    "download-weights": "Fetch a model from the Hugging Face hub into the cache.",
    "router": "Serve the HTTP API in front of a shard that runs already.",
    "serve": "Serve a model: a directory, or an id on the Hugging Face hub.",
    "shard": "Run a model behind a socket, for a router elsewhere.",
}


class _Commands(click.Group):
    """Commands by name; the module of the same name in this package holds the command."""

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
    """Serve large language models over the API of text-generation-inference; the hardware is a plugin."""


def main() -> None:
    """The entry point of `tgi`."""
    run(tgi, "tgi")


def run(command: Callable[[], object], name: str) -> None:
    """Run a command line; a StartupError, or an error of the system that nobody expected, is one line and exit status 1."""
    keep_standard_streams()
    step_aside()
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # read when grpc is imported; it would report each connection that ends
    try:
        try:
            command()
        finally:
            sys.stdout.flush()
    except StartupError as error:
        _end(name, str(error))
    except BrokenPipeError:  # whoever read the output has seen enough
        give_up_stdout()
        sys.exit(1)
    except OSError as error:
        logging.getLogger(__name__).debug("what failed", exc_info=error)
        give_up_stdout()
        _end(name, f"{error.filename or 'input or output'}: {error.strerror or error}")


def _end(name: str, reason: str) -> NoReturn:
    from tgi_core.telemetry.logs import last_words

    last_words(f"{name}: error: {reason}")
    sys.exit(1)
