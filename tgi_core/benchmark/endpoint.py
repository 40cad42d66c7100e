"""A server of TGI's or OpenAI's API: which route it answers on, and the bodies of requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tgi_core.benchmark.generator import Ask, Outcome
from tgi_core.benchmark.load import openai_counts, tgi_counts
from tgi_core.benchmark.target import Target, get_json, listed_models, parse_url
from tgi_core.errors import StartupError

ROUTES = {"tgi": "/generate_stream", "completions": "/v1/completions", "chat": "/v1/chat/completions"}
"""By API."""


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


def find_endpoint(url: str, api: str = "auto", model: str | None = None, api_key: str | None = None) -> Endpoint:
    """The server's route for an API; auto takes OpenAI's completions if it lists models, else TGI's. Raises StartupError."""
    target, prefix = parse_url(url, api_key)
    names = listed_models(target, prefix, url)
    info = {} if names and api != "tgi" else get_json(target, f"{prefix}/info", url)
    named = model or next(iter(names), None) or info.get("model_id") or ""
    if api == "auto":
        if not names and "model_id" not in info:
            raise StartupError(f"{url}: neither /v1/models nor /info tells of a model; name the API with --api")
        api = "completions" if names else "tgi"
    return Endpoint(url, target, prefix, api, str(named))
