"""`tgi-conformance`: the suite's command line. Subcommands are imported on use, so that help is fast."""

from __future__ import annotations

import importlib

import click

from tgi_conformance import __version__

_COMMANDS = ("list", "run", "verify", "diff", "replay", "matrix", "registry", "mutants", "generated", "new-backend")


class _Lazy(click.Group):
    """A group whose commands live in modules of the same name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"tgi_conformance.cli.{cmd_name.replace('-', '_')}").command
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Print what a command finds wrong in one line; click's own usage errors keep their hint."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if type(error) is click.UsageError:
                error.ctx = None
            raise


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tgi-conformance")
def main() -> None:
    """Test whether a backend complies with tgi-core's backend contract.

    Exit status: 0 level granted, 1 not granted, 2 usage error, 3 internal error.
    """
