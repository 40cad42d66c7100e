"""`tgi backends`: list the installed backends and their devices."""

from __future__ import annotations

import click

from tgi_core.backend.probe import probe_all
from tgi_core.backend.registry import Plugin, PluginStatus, installed, load
from tgi_core.backend.types import Probe
from tgi_core.cli.tables import show_table

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
    show_table(COLUMNS, rows)
    for plugin, _ in probed:
        if show_traceback and plugin.traceback:
            click.echo(f"\n{plugin.name}:\n{plugin.traceback}")
