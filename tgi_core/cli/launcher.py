"""`text-generation-launcher`: `tgi serve` with the defaults of TGI's launcher."""

from __future__ import annotations

import click

from tgi_core import __version__
from tgi_core.cli import run as run_command
from tgi_core.cli.options import Resolved, SettingsCommand, settings_options
from tgi_core.cli.serve import run

DEFAULTS = {"model_id": "bigscience/bloom-560m", "auto_convert": True, "max_top_n_tokens": 5}
"""Defaults of TGI's launcher that differ from `tgi serve`."""


@click.command("text-generation-launcher", cls=SettingsCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="text-generation-launcher")
@click.option("-e", "--env", "runtime", is_flag=True, help="Print the runtime environment for bug reports, then serve.")
@settings_options(DEFAULTS)
def launcher(runtime: bool, resolved: Resolved) -> None:
    """Serve a model, like `tgi serve` but with the defaults of TGI's launcher."""
    run(resolved.settings, resolved.origins, runtime)


def main() -> None:
    """Entry point of `text-generation-launcher`."""
    run_command(launcher, "text-generation-launcher")
