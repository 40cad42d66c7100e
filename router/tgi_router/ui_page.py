"""/ui: a page on which people chat with the model and watch the server, served from installed files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import PurePath

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tgi_router.endpoints import Endpoint

_MEDIA_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}
_PAGE = "index.html"

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Trusted Types, without a policy that could create any, make every assignment of HTML a TypeError."""

_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    # The files belong together: with a lifetime, a browser would mix those of two versions after an upgrade.
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the page with its entity tag."""

    content: bytes
    media_type: str
    tag: str

    @classmethod
    def of(cls, content: bytes, name: str) -> _File:
        return cls(content, _MEDIA_TYPES[PurePath(name).suffix], f'"{sha256(content).hexdigest()[:32]}"')

    def respond(self, request: Request) -> Response:
        """Respond with the file, or with 304 if the client has it."""
        headers = {**_HEADERS, "etag": self.tag}
        if _matches(self.tag, request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


class UiRoutes:
    """Handlers of the page and its files. They need no API key: the page asks for it and sends it with each of its requests."""

    def __init__(self) -> None:
        self._assets = dict(_assets())
        page = self._assets.pop(_PAGE).content
        self._pages = {deeper: _File.of(page.replace(b"{root}", root), _PAGE) for deeper, root in ((False, b"."), (True, b".."))}

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        return [
            Endpoint("GET", "/ui", self.page, "Server", text="text/html", public=True),
            Endpoint("GET", "/ui/", self.page, "Server", text="text/html", public=True, documented=False),
            Endpoint("GET", "/ui/{asset}", self.asset, "Server", public=True, documented=False),
        ]

    async def page(self, request: Request) -> Response:
        """Show the chat page.

        Returns a page on which people chat with the model and watch the server. It loads nothing from other servers, and it asks for
        the API key if there is one. Not served with `--no-ui`.
        """
        return self._pages[request.url.path.endswith("/")].respond(request)

    async def asset(self, request: Request) -> Response:
        """Serve a file of the page."""
        found = self._assets.get(request.path_params["asset"])
        if found is None:
            raise HTTPException(status_code=404)
        return found.respond(request)


def _assets() -> Iterator[tuple[str, _File]]:
    """Read the files. Their names are the only ones that are served."""
    for each in (files("tgi_core") / "ui").iterdir():
        if PurePath(each.name).suffix in _MEDIA_TYPES:
            yield each.name, _File.of(each.read_bytes(), each.name)


def _matches(tag: str, wanted: str) -> bool:
    """Whether an If-None-Match header lists an entity tag, compared weakly."""
    listed = [each.strip().removeprefix("W/") for each in wanted.split(",")]
    return tag in listed or listed == ["*"]
