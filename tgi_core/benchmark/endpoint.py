"""A server of TGI's or OpenAI's API: which route it answers on, and the bodies of requests."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tgi_core.benchmark.generator import Ask, Outcome, Target
from tgi_core.benchmark.load import openai_counts, tgi_counts
from tgi_core.errors import StartupError

ROUTES = {"tgi": "/generate_stream", "completions": "/v1/completions", "chat": "/v1/chat/completions"}
"""By API."""

_ANSWER_S = 20.0


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's text, or a chat's messages, and how many tokens to generate."""

    text: str
    new: int
    messages: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route of a server. `extra` are fields of every body; `ignore_eos` asks for all tokens, whatever the model would end at."""

    url: str
    target: Target
    prefix: str
    api: str
    model: str
    ignore_eos: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)

    def ask(self, prompt: Prompt, at: float = 0.0) -> Ask:
        """A request that is sent at a time in seconds."""
        return Ask(at, self.prefix + ROUTES[self.api], json.dumps(self._body(prompt)))

    def counts(self, outcome: Outcome) -> tuple[int | None, int]:
        """Tokens of the prompt, if the server tells, and tokens generated. Raises LoadError, and ValueError for text that is no JSON."""
        return (tgi_counts if self.api == "tgi" else openai_counts)(outcome)

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        if self.api == "tgi":
            return {"inputs": prompt.text, "parameters": {"max_new_tokens": prompt.new, "details": True, **self.extra}}
        asked: dict[str, Any] = {"messages": prompt.messages or [{"role": "user", "content": prompt.text}]}
        if self.api == "completions":
            asked = {"prompt": prompt.text}
        asked |= {"model": self.model, "max_tokens": prompt.new, "temperature": 0, "stream": True}
        asked |= {"stream_options": {"include_usage": True}} | ({"ignore_eos": True} if self.ignore_eos else {})
        return asked | dict(self.extra)


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


def find_endpoint(url: str, api: str = "auto", model: str | None = None, api_key: str | None = None) -> Endpoint:
    """The server's route for an API; auto takes OpenAI's completions if it lists models, else TGI's. Raises StartupError."""
    target, prefix = parse_url(url, api_key)
    listed = get_json(target, f"{prefix}/v1/models", url)
    names = [item.get("id") for item in listed.get("data") or () if isinstance(item, dict)] if listed else []
    info = {} if names and api != "tgi" else get_json(target, f"{prefix}/info", url)
    named = model or next((name for name in names if name), None) or info.get("model_id") or ""
    if api == "auto":
        if not names and "model_id" not in info:
            raise StartupError(f"{url}: neither /v1/models nor /info tells of a model; name the API with --api")
        api = "completions" if names else "tgi"
    return Endpoint(url, target, prefix, api, str(named))


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


def connect(target: Target, seconds: float | None) -> http.client.HTTPConnection:
    """A connection, opened with its first request; `seconds` limit each read."""
    if target.tls:
        return http.client.HTTPSConnection(target.host, target.port, timeout=seconds, context=ssl.create_default_context())
    return http.client.HTTPConnection(target.host, target.port, timeout=seconds)
