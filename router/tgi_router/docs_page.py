"""The OpenAPI document and /docs: Swagger UI, served from installed files."""

from __future__ import annotations

from asyncio import to_thread
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response

from tgi_router.endpoints import Endpoint
from tgi_router.json_text import dumps

if TYPE_CHECKING:
    from fastapi import FastAPI

_ASSETS = {"swagger-ui.css": "text/css", "swagger-ui-bundle.js": "text/javascript", "favicon.png": "image/png"}
"""Files of the package fastapi-offline, which bundles Swagger UI."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {"content-security-policy": _POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>tgi-core: the HTTP API</title>
<link rel="icon" href="{root}/docs/favicon.png">
<link rel="stylesheet" href="{root}/docs/swagger-ui.css">
<link rel="stylesheet" href="{root}/docs/page.css">
</head>
<body>
<div id="swagger-ui" data-document="{root}/openapi.json"></div>
<script src="{root}/docs/swagger-ui-bundle.js"></script>
<script src="{root}/docs/page.js"></script>
</body>
</html>
"""
"""`root` is the relative path to the server's root, so that the page also works behind a proxy that adds a prefix."""

_SCRIPT = """const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();
const place = document.getElementById("swagger-ui");
SwaggerUIBundle({
  domNode: place,
  url: place.dataset.document,
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  requestSnippetsEnabled: true,
  tryItOutEnabled: true,
  validatorUrl: null,
});
"""

_STYLE = """body { margin: 0 }
html.dark-mode { color-scheme: dark }
.swagger-ui .renderedMarkdown p { line-height: 1.6 }
html.dark-mode .swagger-ui .examples__section-header, html.dark-mode .swagger-ui .examples-select__section-label { color: #e4e6e6 }
"""

_OWN = {"page.css": (_STYLE, "text/css"), "page.js": (_SCRIPT, "text/javascript")}


class DocumentRoutes:
    """Handlers of the API documentation, which includes their own operations."""

    def __init__(self) -> None:
        self._document = ""

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        return [
            Endpoint("GET", "/openapi.json", self.openapi, "Server", answer=dict[str, Any]),
            Endpoint("GET", "/api-doc/openapi.json", self.openapi, "Server", answer=dict[str, Any]),
            Endpoint("GET", "/docs", self.docs, "Server", text="text/html"),
            Endpoint("GET", "/docs/", self.docs, "Server", text="text/html", documented=False),
            Endpoint("GET", "/docs/{asset}", self.asset, "Server", documented=False),
        ]

    async def openapi(self, request: Request) -> Response:
        """Get the OpenAPI document.

        Returns this document, in OpenAPI 3.1. `/api-doc/openapi.json` is TGI's path for it, `/openapi.json` FastAPI's.
        """
        if not self._document:
            self._document = await to_thread(_document, cast("FastAPI", request.app))  # too slow for the event loop
        return Response(self._document, media_type="application/json")

    async def docs(self, request: Request) -> Response:
        """Show the API documentation.

        Returns an interactive page (Swagger UI) that can call every operation. It loads nothing from other servers.
        """
        root = ".." if request.url.path.endswith("/") else "."
        return HTMLResponse(_PAGE.replace("{root}", root), headers=_HEADERS)

    async def asset(self, request: Request) -> Response:
        """Serve a file of the documentation page."""
        name = request.path_params["asset"]
        if own := _OWN.get(name):
            return Response(own[0], media_type=own[1], headers=_HEADERS)
        if name not in _ASSETS:
            raise HTTPException(status_code=404)
        path = str(files("fastapi_offline") / "static" / name)
        return FileResponse(path, media_type=_ASSETS[name], headers={**_HEADERS, "cache-control": "max-age=3600"})


def _document(app: FastAPI) -> str:
    return dumps(app.openapi())
