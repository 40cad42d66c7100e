"""`tgi-conformance`: the suite on a command line. Subcommands are imported when they are called, so that help is quick."""

from __future__ import annotations

import importlib

import click

from tgi_conformance import __version__

_COMMANDS = ("list", "run", "verify", "diff", "replay", "matrix", "registry", "mutants", "generated", "new-backend")


class _Lazy(click.Group):
    """A group whose commands live in modules of their own name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"tgi_conformance.cli.{cmd_name.replace('-', '_')}").command
        return command

    def invoke(self, ctx: click.Context) -> object:
        """One line for what a command finds wrong; click's own complaints keep their hint of the usage."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if type(error) is click.UsageError:
                error.ctx = None
            raise


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tgi-conformance")
def main() -> None:
    """Whether a backend keeps the contract with tgi-core.

    Exit status: 0 granted, 1 not granted, 2 wrong usage, 3 a fault of the suite.
    """
