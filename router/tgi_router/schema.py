"""`python -m tgi_router.schema` prints the OpenAPI document of a server with default settings."""

from __future__ import annotations

import json
from typing import Any

from tgi_core.backend import API_VERSION
from tgi_core.backend.reference import ReferenceSession
from tgi_core.config import Settings
from tgi_core.model_files import DEMO
from tgi_core.scheduler.types import Limits
from tgi_core.wire.types import ShardInfo
from tgi_router.app import create_app
from tgi_router.served_model import ServedModel


class _Undriven:
    """A stub generator, sufficient for an app that only renders its document."""

    info = ShardInfo("demo", "reference", "none", "float32", API_VERSION, ReferenceSession().capabilities())
    limits = Limits(max_input_tokens=1, max_total_tokens=2)
    tokenize_images = None


def document() -> dict[str, Any]:
    """Return the response of such a server to GET /openapi.json."""
    undriven: Any = _Undriven()
    return create_app(Settings(), ServedModel.load(DEMO, "demo", Settings()), undriven).openapi()


def text() -> str:
    """Return the document as JSON."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(text(), end="")
