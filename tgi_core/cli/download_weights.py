"""`tgi download-weights`: a model's files, now instead of at the first start."""

from __future__ import annotations

import click

from tgi_core.cli.options import Resolved, SettingsCommand, settings_options
from tgi_core.cli.serve import named
from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.telemetry.logs import set_up
from tgi_core.telemetry.progress import progress

SETTINGS = frozenset(
    {
        "model_id",
        "revision",
        "auto_convert",
        "huggingface_hub_cache",
        "weights_cache_override",
        "trust_remote_code",
        "lora_adapters",
        "json_output",
    }
)
"""The settings that a download depends on."""


@click.command("download-weights", cls=SettingsCommand)
@click.argument("model", required=False)
@settings_options(only=SETTINGS)
def command(model: str | None, resolved: Resolved) -> None:
    """Fetch MODEL, an id on the Hugging Face hub, and its adapters into the cache, and print the model's directory."""
    download(named(model, resolved))


def download(settings: Settings) -> None:
    """Fetch model and adapters, print the model's directory on standard output. Raises StartupError."""
    from tgi_core.cli.weights import fetch_adapters, fetch_model

    set_up(settings.json_output)
    if settings.model_id is None:
        raise StartupError("MODEL: missing; give the model's id on the hub")
    with progress() as show:
        directory = fetch_model(settings.model_id, settings, show)
        fetch_adapters(settings, show)
    click.echo(str(directory))
