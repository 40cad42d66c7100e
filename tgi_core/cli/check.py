"""`tgi check`: what serving a model would take, before it is loaded."""

from __future__ import annotations

import json
import re
import sys

import click

from tgi_core.cli.options import Resolved, SettingsCommand, settings_options, with_model
from tgi_core.cli.tables import show_table
from tgi_core.errors import StartupError

_UNITS = {
    "": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
}


@click.command("check", cls=SettingsCommand)
@click.argument("model", required=False)
@click.option("--memory", metavar="SIZE", help="Memory of the device, such as 24GiB. Default: what is free now.")
@click.option("--alternatives", is_flag=True, help="Also try quantization and smaller dtypes if the model fits as it is.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@settings_options()
def command(model: str | None, memory: str | None, alternatives: bool, as_json: bool, resolved: Resolved) -> None:
    """Report whether MODEL fits on this machine and how it would run, from its config and the headers of its weight files. MODEL and
    all settings are those of `tgi serve`. The exit status is 1 if it does not fit.

    The report has the memory plan, how many requests of which length the KV cache holds, and which kernels would run, and why.
    """
    from tgi_core.cli.fit import examine, sections

    settings = with_model(model, resolved)
    report = examine(settings, None if memory is None else parse_size(memory), alternatives)
    if as_json:
        click.echo(json.dumps(report.document(), indent=1))
    else:
        for place, (title, rows) in enumerate(sections(report)):
            if place and not sys.stdout.isatty():
                click.echo()
            show_table(("",) * len(rows[0]), rows, title)
    if report.reason:
        raise StartupError(report.reason)


def parse_size(text: str) -> int:
    """Bytes of a size such as 24GiB. Raises StartupError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if found is None or found.group(2).upper() not in _UNITS:
        raise StartupError(f"--memory {text}: must be a size such as 24GiB or 80GB")
    return int(float(found.group(1)) * _UNITS[found.group(2).upper()])
