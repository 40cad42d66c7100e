"""`tgi download-weights`: download a model's files ahead of the first start."""

from __future__ import annotations

import click

from tgi_core.cli.options import Resolved, SettingsCommand, settings_options, with_model
from tgi_core.config import Scope, Settings, settings_in
from tgi_core.errors import StartupError
from tgi_core.telemetry.logs import set_up
from tgi_core.telemetry.progress import progress


@click.command("download-weights", cls=SettingsCommand)
@click.argument("model", required=False)
@settings_options(only=settings_in(Scope.DOWNLOAD))
def command(model: str | None, resolved: Resolved) -> None:
    """Download MODEL, a Hugging Face Hub id, its speculator and the adapters into the cache, and print the model's directory."""
    download(with_model(model, resolved))


def download(settings: Settings) -> None:
    """Download model, speculator and adapters and print the model's directory to standard output. Raises StartupError."""
    from tgi_core.cli.weights import fetch_adapters, fetch_models

    set_up(settings.json_output)
    if settings.model_id is None:
        raise StartupError("MODEL: missing; give the model's id on the Hub")
    with progress() as show:
        directory, settings = fetch_models(settings.model_id, settings, show)
        fetch_adapters(settings, show)
    click.echo(str(directory))
