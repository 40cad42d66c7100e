"""`tgi serve`: read the model, open the backend, warm up, listen."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence

import click

from tgi_core.cli.fault_injection import fault_rules
from tgi_core.cli.options import Resolved, SettingsCommand, settings_options, with_model
from tgi_core.cli.ray_engine import check_engine
from tgi_core.cli.runtime import print_runtime
from tgi_core.cli.settings_review import review
from tgi_core.cli.tunnel import check_tunnel
from tgi_core.cli.weights import check_adapters
from tgi_core.config import Settings
from tgi_core.model_files import DEMO
from tgi_core.telemetry.logs import announce, set_up

_log = logging.getLogger(__name__)


@click.command("serve", cls=SettingsCommand)
@click.argument("model", required=False)
@click.option("-e", "--env", "runtime", is_flag=True, help="Print the runtime environment for bug reports, then serve.")
@settings_options()
def command(model: str | None, runtime: bool, resolved: Resolved) -> None:
    """Serve MODEL: a directory, a GGUF file or a Hugging Face Hub id. Default: the small bundled demo model."""
    run(with_model(model, resolved), resolved.origins, runtime)


def run(settings: Settings, origins: Mapping[str, str], runtime: bool = False, addresses: Sequence[str] = ()) -> None:
    """Serve until stopped by a signal, with new shards or those at `addresses`. Validates the settings before loading anything.
    `origins` of the settings are those of `Resolved`. Raises StartupError."""
    set_up(settings.json_output)
    if runtime:
        print_runtime()
    for line in review(settings, os.environ):
        _log.warning("%s", line)
    check_tunnel(settings)
    check_engine(settings)
    fault_rules(settings)
    check_adapters(settings)

    announce(f"starting to serve {settings.model_id or 'the bundled demo model'}")  # the imports that follow take a while

    from tgi_core.cli.listening import settle_hostname
    from tgi_core.cli.loops import scaling_rules
    from tgi_core.cli.serving import serve

    scaling_rules(settings)  # report mistakes before reading the model
    settings = settle_hostname(settings, origins["hostname"])
    asyncio.run(serve(settings.model_id or str(DEMO), settings, addresses))
