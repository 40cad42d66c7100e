"""The router alone, for a shard that is already running: `tgi router`, and `text-generation-router` with TGI's flags."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import click

from tgi_core import __version__
from tgi_core.cli import run as run_command
from tgi_core.cli.options import Resolved, SettingsCommand, settings_options, with_model
from tgi_core.cli.serve import run
from tgi_core.config import Scope, settings_in
from tgi_core.errors import StartupError
from tgi_core.workers.command import python

DEFAULTS = {"waiting_served_ratio": 1.2, "max_batch_prefill_tokens": 4096, "max_top_n_tokens": 5}
"""Defaults of TGI's router that differ from its launcher."""


@click.command("router", cls=SettingsCommand)
@click.argument("model", required=False)
@click.option(
    "--shard",
    "shards",
    required=True,
    multiple=True,
    metavar="ADDRESS",
    help="Address of the shard: unix:PATH or HOST:PORT. Repeatable: requests are divided among several shards of the same model.",
)
@settings_options(only=settings_in(Scope.ROUTER))
def command(model: str | None, shards: tuple[str, ...], resolved: Resolved) -> None:
    """Serve the HTTP API for the shards of MODEL that are running at each ADDRESS. Needs only the model's config and tokenizer files."""
    addresses = [checked(each) for each in shards]
    for address in addresses:
        if addresses.count(address) > 1:
            raise StartupError(f"--shard {address}: is given more than once; a shard serves one router at a time")
    run(with_model(model, resolved), resolved.origins, addresses=addresses)


def checked(address: str) -> str:
    """Normalize an address for gRPC. Raises StartupError."""
    path = address.removeprefix("unix:").removeprefix("//")
    if address.startswith("unix:") and path.startswith("/"):
        return f"unix:{path}"
    if address.startswith("/"):
        return f"unix:{address}"
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in address:
        raise StartupError(f"--shard {address}: must be unix:/PATH or HOST:PORT")
    return address


class _RouterCommand(SettingsCommand, click.Group):
    """A command group that is also a command itself, like TGI's router."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the grouped options, then the commands."""
        SettingsCommand.format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


@click.group(
    "text-generation-router",
    cls=_RouterCommand,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, "-V", "--version", prog_name="text-generation-router")
@click.option("--tokenizer-name", envvar="TOKENIZER_NAME", default="bigscience/bloom", show_default=True, help="The model.")
@click.option(
    "--master-shard-uds-path",
    envvar="MASTER_SHARD_UDS_PATH",
    default="/tmp/text-generation-server-0",  # noqa: S108  # TGI's own
    show_default=True,
    help="Socket of the shard.",
)
@settings_options(DEFAULTS, settings_in(Scope.ROUTER) - {"model_id"})
@click.pass_context
def router(ctx: click.Context, tokenizer_name: str, master_shard_uds_path: str, resolved: Resolved) -> None:
    """Serve the HTTP API for a shard that is already running."""
    if ctx.invoked_subcommand is None:
        address = checked(f"unix:{master_shard_uds_path}")
        run(replace(resolved.settings, model_id=tokenizer_name), resolved.origins, addresses=[address])


@router.command("print-schema")
def print_schema() -> None:
    """Print the OpenAPI document of the HTTP API as JSON."""
    # A separate process, since this package must not import the router's modules.
    quiet = os.environ | {"PYTHONWARNINGS": "ignore"}
    result = subprocess.run(python("tgi_router.schema"), stdout=subprocess.PIPE, env=quiet, text=True, check=False)
    if result.returncode != 0 or not result.stdout.startswith("{"):
        raise StartupError("print-schema: could not generate the OpenAPI document")
    click.echo(result.stdout, nl=not result.stdout.endswith("\n"))


def main() -> None:
    """Entry point of `text-generation-router`."""
    run_command(router, "text-generation-router")
