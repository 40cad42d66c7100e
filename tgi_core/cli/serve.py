"""`tgi serve`: read the model, open the backend, warm up, listen."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from tgi_core.cli.options import settings_options
from tgi_core.config import Settings
from tgi_core.model_files import DEMO


@click.command("serve")
@click.argument("model", required=False, envvar="MODEL_ID")
@click.option("--model-id", "model_id", help="The model, as TGI's launcher names it.")
@settings_options
def command(model: str | None, model_id: str | None, **values: Any) -> None:
    """Serve MODEL: a directory, or an id on the Hugging Face hub. Without MODEL, the small bundled demo model."""
    settings = Settings(**values)

    from tgi_core.cli.serving import serve

    asyncio.run(serve(model_id or model or str(DEMO), settings))
