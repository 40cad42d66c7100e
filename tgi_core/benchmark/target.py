"""Servers by their URLs, and connections to them."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tgi_core.errors import StartupError

_ANSWER_S = 20.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests are sent. `headers` are added to each."""

    host: str
    port: int
    tls: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def parse_url(url: str, api_key: str | None = None) -> tuple[Target, str]:
    """Where a server's URL points, and the prefix of its paths. Raises StartupError."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError as error:
        raise StartupError(f"{url}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise StartupError(f"{url}: not the URL of a server, such as http://127.0.0.1:3000")
    tls = parts.scheme == "https"
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return Target(parts.hostname, port or (443 if tls else 80), tls, headers), parts.path.rstrip("/").removesuffix("/v1")


def get_json(target: Target, path: str, url: str) -> dict[str, Any]:
    """A JSON object that a GET returns; empty for another answer. Raises StartupError if nothing answers."""
    connection = connect(target, _ANSWER_S)
    try:
        connection.request("GET", path, headers=dict(target.headers))
        response = connection.getresponse()
        found = json.loads(response.read()) if response.status == 200 else {}
        if response.status == 401:
            raise StartupError(f"{url}: the server wants another API key; set --api-key")
    except ValueError:
        return {}
    except (OSError, http.client.HTTPException) as error:
        raise StartupError(f"{url}: no answer: {getattr(error, 'strerror', None) or error or type(error).__name__}") from error
    finally:
        connection.close()
    return found if isinstance(found, dict) else {}


def listed_models(target: Target, prefix: str, url: str) -> list[str]:
    """Names in the server's /v1/models; empty if it has none. Raises StartupError if nothing answers."""
    listed = get_json(target, f"{prefix}/v1/models", url).get("data")
    return [str(item["id"]) for item in listed or () if isinstance(item, dict) and item.get("id")]


def connect(target: Target, seconds: float | None) -> http.client.HTTPConnection:
    """A connection, opened with its first request; `seconds` limit each read."""
    if target.tls:
        return http.client.HTTPSConnection(target.host, target.port, timeout=seconds, context=ssl.create_default_context())
    return http.client.HTTPConnection(target.host, target.port, timeout=seconds)
