"""--ngrok: an address on the internet for a server that has none, by the optional ngrok package."""

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
    """Raise StartupError for a tunnel that cannot be, before any slow work."""
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
    """While the block runs, ngrok forwards to the port of this machine. Raises StartupError."""
    if not settings.ngrok:
        yield
        return
    ngrok: Any = importlib.import_module("ngrok")
    # In a thread without an event loop ngrok's calls wait for their result; on the loop they would return tasks.
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
    except Exception as error:  # noqa: BLE001  # the package raises bare ValueError and errors of its own
        reason = str(error).replace(str(settings.ngrok_authtoken), "(hidden)").strip().splitlines()
        raise StartupError(f"--ngrok: cannot open a tunnel: {reason[0] if reason else type(error).__name__}") from None
