"""The application of Ray Serve, as far as it needs no Ray: its settings, and the router as an ASGI app."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.ray import RouterApp, settings_of

BODY = {"inputs": "What is 7 plus 5?", "parameters": {"max_new_tokens": 20, "details": True, "ignore_eos": True}}


@pytest.fixture(autouse=True)
def own_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the log of this process as it is."""
    monkeypatch.setattr("tgi_core.ray.set_up", lambda json_output: None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ui": "perhaps"}, "ui=perhaps: must be true or false"),
        ({"replicas": "many"}, "--replicas"),
        ({"no_such": "1"}, "--no-such"),
        ({"engine": "local", "replicas": "3", "max_replicas": "2"}, "--replicas 3: the server starts with so many"),
    ],
)
def test_wrong_arguments(arguments: dict[str, str], words: str) -> None:
    """Refused with the name of the setting, before anything is started."""
    with pytest.raises(StartupError, match=words):
        settings_of({"engine": "local"} | arguments)


def test_arguments_are_settings() -> None:
    """By name, switches too."""
    settings = settings_of(
        {"engine": "local", "model_id": "org/model", "max-replicas": "4", "ui": "false", "json_output": "true"}
    )
    assert settings == Settings(model_id="org/model", engine="local", max_replicas=4, ui=False, json_output=True)


async def test_the_router_is_an_asgi_app() -> None:
    """Startup opens the shards, requests are answered, also as a stream, and shutdown closes everything."""
    app = RouterApp(Settings(backend="reference", in_process=True, replicas=2))
    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    told: asyncio.Queue[Any] = asyncio.Queue()
    living = asyncio.create_task(app({"type": "lifespan"}, events.get, told.put))
    await events.put({"type": "lifespan.startup"})
    assert await told.get() == {"type": "lifespan.startup.complete"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://ray") as client:  # type: ignore[arg-type]
        whole = (await client.post("/generate", json=BODY)).json()
        streamed = (await client.post("/generate_stream", json=BODY)).text
        assert whole["details"]["generated_tokens"] == streamed.count('"token"') == 20
        assert len((await client.get("/info")).json()["replicas"]) == 2
    await events.put({"type": "lifespan.shutdown"})
    assert await told.get() == {"type": "lifespan.shutdown.complete"}
    await living


async def test_a_failed_start_is_reported() -> None:
    """A model that does not exist: Serve gets the reason."""
    app = RouterApp(Settings(model_id="/no/such/model", backend="reference", in_process=True))
    told: asyncio.Queue[Any] = asyncio.Queue()
    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    await events.put({"type": "lifespan.startup"})
    await app({"type": "lifespan"}, events.get, told.put)
    failed = await told.get()
    assert failed["type"] == "lifespan.startup.failed" and "/no/such/model" in failed["message"]
