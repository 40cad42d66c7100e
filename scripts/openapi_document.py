"""Writes docs/openapi.json: the OpenAPI document of a server with default settings.

python scripts/openapi_document.py
"""

from __future__ import annotations

from pathlib import Path

from tgi_router.schema import text

TARGET = Path(__file__).parents[1] / "docs" / "openapi.json"

if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
