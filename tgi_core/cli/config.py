"""`tgi config show`: print the effective settings and their origins."""

from __future__ import annotations

import json
from dataclasses import Field, fields

import click

from tgi_core.cli.options import Resolved, SettingsCommand, settings_options, with_model
from tgi_core.config import Settings
from tgi_core.settings.spec import setting_of


@click.group("config")
def command() -> None:
    """Inspect the settings."""


@command.command("show", cls=SettingsCommand)
@click.argument("model", required=False)
@click.option("--origin", is_flag=True, help="Show where each value came from.")
@settings_options()
def show(model: str | None, origin: bool, resolved: Resolved) -> None:
    """Print every setting as `tgi serve` would see it with the same flags, environment and file. The output is TOML; secrets and
    values derived at startup are commented out."""
    settings = with_model(model, resolved)
    origins = {**resolved.origins, **({} if model is None else {"model_id": "argument MODEL"})}
    lines = {spec.name: toml_line(spec, settings) for spec in fields(Settings)}
    width = max(len(line) for line in lines.values()) if origin else 0
    for name, line in lines.items():
        click.echo(f"{line:{width}}  # {origins[name]}" if origin else line)


def toml_line(spec: Field[object], settings: Settings) -> str:
    """Format `name = value`, or a comment if there is no value to show."""
    value = getattr(settings, spec.name)
    if value is None:
        return f"# {spec.name} ="
    if setting_of(spec).secret:
        return f"# {spec.name} = (hidden)"
    # For these types, JSON is valid TOML.
    return f"{spec.name} = {json.dumps(value, ensure_ascii=False)}"
