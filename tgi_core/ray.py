"""The server as a Ray Serve application: `serve run tgi_core.ray:app model_id=MODEL replicas=2`.

Serve runs the router, and its proxies pass requests to it. The router places shards on the cluster and requests on shards, as `tgi serve
--engine ray` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import AsyncExitStack
from dataclasses import fields
from typing import Any

import click

from tgi_core.cli.loops import scaling_rules
from tgi_core.cli.options import Resolved, SettingsCommand, settings_options
from tgi_core.cli.ray_engine import check_engine
from tgi_core.cli.serving import start_components
from tgi_core.cli.weights import check_adapters
from tgi_core.config import Settings, flag
from tgi_core.errors import StartupError
from tgi_core.lifecycle import Lifecycle
from tgi_core.model_files import DEMO
from tgi_core.telemetry.logs import set_up
from tgi_core.telemetry.traces import open_traces

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


def app(arguments: Mapping[str, str]) -> Any:
    """Build the application. `arguments` are settings of `tgi serve` by name, such as `max_replicas=4`; environment variables and
    TGI_CONFIG count as there. Raises StartupError."""
    from ray import serve

    settings = settings_of(arguments)

    def build() -> RouterApp:
        return RouterApp(settings)

    deployment = serve.deployment(serve.ingress(build)())
    return deployment.options(
        name="router",
        max_ongoing_requests=2 * settings.max_concurrent_requests,  # the router refuses those beyond its own limit
        graceful_shutdown_timeout_s=float(settings.graceful_termination_timeout),
        ray_actor_options={"num_cpus": 1},
    ).bind()


def settings_of(arguments: Mapping[str, str]) -> Settings:
    """Read settings as `tgi serve --engine ray` does, with `arguments` in place of flags. Raises StartupError."""
    switches = {spec.name for spec in fields(Settings) if isinstance(spec.default, bool)}
    words = []
    for key, value in arguments.items():
        name = key.replace("-", "_")
        if name not in switches:
            words.append(f"{flag(name)}={value}")
        elif str(value).lower() in ("true", "false"):
            words.append(flag(name) if str(value).lower() == "true" else f"--no-{flag(name)[2:]}")
        else:
            raise StartupError(f"{name}={value}: must be true or false")
    try:
        settings: Settings = _read.main(words, standalone_mode=False)
    except click.ClickException as error:
        raise StartupError(error.format_message()) from error
    check_engine(settings)
    check_adapters(settings)
    scaling_rules(settings)
    return settings


@click.command(cls=SettingsCommand)
@settings_options({"engine": "ray"})
def _read(resolved: Resolved) -> Settings:
    """Return the settings."""
    return resolved.settings


class RouterApp:
    """The router as an ASGI app, which opens its shards when it starts up and closes them when it shuts down."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._app: Any = None

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Handle a request, or the lifespan of the app."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await self._app(scope, receive, send)

    async def _live(self, receive: _Receive, send: _Send) -> None:
        from tgi_router import on_any_server

        await receive()  # lifespan.startup
        settings, lifecycle = self._settings, Lifecycle()
        set_up(settings.json_output)
        async with AsyncExitStack() as stack:
            traces = open_traces(settings.otlp_endpoint, settings.otlp_service_name)
            if traces is not None:
                stack.push_async_callback(asyncio.to_thread, traces.close)
            try:
                started = await start_components(settings.model_id or str(DEMO), settings, (), lifecycle, traces, stack)
            except StartupError as error:
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            self._app = on_any_server(started.app)
            lifecycle.serving()
            await send({"type": "lifespan.startup.complete"})
            await receive()  # lifespan.shutdown
            lifecycle.draining()
        await send({"type": "lifespan.shutdown.complete"})
