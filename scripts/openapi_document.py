"""Writes docs/openapi.json: the OpenAPI document of a server with default settings.

python scripts/openapi_document.py
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
from tgi_router import ServedModel, create_app

from tgi_core.backend import API_VERSION
from tgi_core.backend.reference import ReferenceSession
from tgi_core.client.types import ShardInfo
from tgi_core.config import Settings
from tgi_core.model_files import DEMO
from tgi_core.scheduler.types import Limits

TARGET = Path(__file__).parents[1] / "docs" / "openapi.json"


class Undriven:
    """As much of a generator as an app needs that is asked for its document only."""

    info = ShardInfo("demo", "reference", "none", "float32", API_VERSION, ReferenceSession().capabilities())
    limits = Limits(max_input_tokens=1, max_total_tokens=2)


async def fetch() -> dict[str, Any]:
    """The document as a client gets it."""
    app = create_app(Settings(), ServedModel.load(DEMO, "demo", Settings()), Undriven())  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        answer = await client.get("/api-doc/openapi.json")
    document: dict[str, Any] = answer.json()
    return document


def text() -> str:
    """The file's text."""
    return json.dumps(asyncio.run(fetch()), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
