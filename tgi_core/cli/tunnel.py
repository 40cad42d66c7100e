"""--ngrok: expose the server on the internet through an ngrok tunnel, with the optional ngrok package."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.telemetry.logs import announce

_log = logging.getLogger(__name__)


def check_tunnel(settings: Settings) -> None:
    """Check the tunnel's settings before any slow work. Raises StartupError."""
    if not settings.ngrok:
        return
    if importlib.util.find_spec("ngrok") is None:
        raise StartupError("--ngrok: the ngrok package is not installed; run pip install 'tgi-core[ngrok]'")
    if settings.ngrok_authtoken is None:
        raise StartupError("--ngrok: --ngrok-authtoken is required; ngrok's dashboard shows your token")
    if settings.api_key is None:
        _log.warning("--ngrok without --api-key: anyone who knows the tunnel's address can use the server")


@asynccontextmanager
async def tunnel(settings: Settings, port: int) -> AsyncGenerator[None, None]:
    """Forward ngrok's address to a local port while the block runs. Raises StartupError."""
    if not settings.ngrok:
        yield
        return
    ngrok: Any = importlib.import_module("ngrok")
    # ngrok's calls block in a thread without an event loop; with a loop they return tasks.
    url = await asyncio.to_thread(_open, ngrok, settings, port)
    announce(f"ngrok: {url}")
    try:
        yield
    finally:
        await asyncio.to_thread(ngrok.disconnect, url)


def _open(ngrok: Any, settings: Settings, port: int) -> str:
    edge = {"proto": "labeled", "labels": f"edge:{settings.ngrok_edge}"} if settings.ngrok_edge else {}
    try:
        listener = ngrok.forward(f"127.0.0.1:{port}", authtoken=settings.ngrok_authtoken, **edge)
        return str(listener.url())
    except Exception as error:  # noqa: BLE001  # the package raises bare ValueError and its own errors
        reason = str(error).replace(str(settings.ngrok_authtoken), "(hidden)").strip().splitlines()
        raise StartupError(f"--ngrok: cannot open a tunnel: {reason[0] if reason else type(error).__name__}") from None
