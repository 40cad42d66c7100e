"""`tgi backends`: list the installed backends and their devices."""

from __future__ import annotations

import sys

import click

from tgi_core.backend.probe import probe_all
from tgi_core.backend.registry import Plugin, PluginStatus, installed, load
from tgi_core.backend.types import Probe

COLUMNS = ("backend", "package", "API", "status", "devices", "verified", "reason")


def row(plugin: Plugin, probe: Probe) -> tuple[str, ...]:
    """Format one row of the table."""
    built = plugin.manifest.api_built if plugin.manifest else None
    status = probe.status.value if plugin.status is PluginStatus.OK else plugin.status.value
    reason = f"{probe.reason} ({probe.hint})" if probe.hint else probe.reason
    api = f"{built[0]}.{built[1]}" if built else "?"
    verified = "yes" if probe.verified_on_hardware else "no"
    return plugin.name, plugin.distribution, api, status, ", ".join(probe.devices), verified, reason


@click.command("backends")
@click.option("--traceback", "show_traceback", is_flag=True, help="Show why a broken plugin did not load.")
def command(show_traceback: bool) -> None:
    """List the installed backends and the devices they detect."""
    probed = probe_all(load(entry) for entry in installed())
    rows = [row(plugin, probe) for plugin, probe in probed]
    if sys.stdout.isatty():
        _print_table(rows)
    else:
        for line in aligned([COLUMNS, *rows]):
            click.echo(line)
    for plugin, _ in probed:
        if show_traceback and plugin.traceback:
            click.echo(f"\n{plugin.name}:\n{plugin.traceback}")


def aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Format a table for programs and logs: columns are padded and two spaces apart, "-" stands for nothing."""
    filled = [tuple(cell or "-" for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*filled, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in filled]


def _print_table(rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*COLUMNS)
    for line in rows:
        table.add_row(*line)
    Console().print(table)
