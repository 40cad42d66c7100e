"""One server for many cases: the demo model's tokenizer, the reference backend with grammars, and watches on what it does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
from pydantic import TypeAdapter
from tgi_router import ServedModel, answers, anthropic_answers, create_app, openai_answers
from tgi_router.anthropic_errors import is_anthropic

from tests.hostile.watch import Watch
from tests.router.serving import Served, serving
from tests.router.shard import Shard
from tests.waiting import wait_until
from tgi_core.backend import WarmupPlan
from tgi_core.config import Settings
from tgi_core.server.masks import GrammarMasks

TEXTS = (
    "Expected request with",
    "Failed to parse",
    "Failed to deserialize",
    "Failed to buffer",
    "Failed to decompress",
    "data did not match",
)
"""How TGI's plain-text answers to unreadable bodies begin."""

LEAKS = re.compile(r"0x[0-9a-fA-F]{6,}|/home|/root|/usr|/tmp|site-packages|\.py\b|Traceback|/dev/shm|psm_")
"""What no error may tell."""

_SECONDS = 30


class ServerUnderTest:
    """A running server and its watches."""

    def __init__(self, served: Served, shard: Shard, watch: Watch) -> None:
        self.served = served
        self.shard = shard
        self.watch = watch
        self.client = httpx.Client(base_url=f"http://{served.address[0]}:{served.address[1]}", timeout=_SECONDS)

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        """Send a body, a value or JSON text. Whatever comes back, an error has a documented shape and tells nothing of the inside."""
        content = body if isinstance(body, str | bytes) else json.dumps(body)
        headers = {"content-type": "application/json", **more.pop("headers", {})}
        answer = self.client.post(path, content=content, headers=headers, **more)
        if answer.status_code != 200:
            check_error(path, answer)
        return answer

    def refuses(self, path: str, body: Any) -> httpx.Response:
        """Send what must be refused with a 4xx, without a step of the device."""
        before = self.steps()
        answer = self.post(path, body)
        assert 400 <= answer.status_code < 500, (path, answer.status_code, answer.text[:300])
        assert len(self.shard.steps) == before, f"{path}: the device worked for a refused request"
        return answer

    def refuses_or_answers(self, path: str, body: Any) -> int:
        """Send what may be good or bad; only the former may cost a step. Returns the status: 424 for a grammar that grows too large
        while it is followed, which is this request's own fault, told as what it is."""
        before = self.steps()
        answer = self.post(path, body)
        assert answer.status_code in (200, 400, 413, 422, 424), (path, answer.status_code, answer.text[:300])
        if answer.status_code == 424:
            assert "Server error: grammar is not valid: " in answer.text, answer.text
        elif answer.status_code != 200:
            assert len(self.shard.steps) == before, (path, answer.text)
        return answer.status_code

    @property
    def masks(self) -> GrammarMasks:
        """Those of the shard."""
        assert self.shard.masks is not None
        return self.shard.masks

    def steps(self) -> int:
        """Steps so far, once what was answered before has really ended: a device that runs ahead makes one more."""
        assert self.shard.loop is not None
        loop = self.shard.loop
        wait_until(lambda: loop.idle)
        return len(self.shard.steps)

    def check_unharmed(self) -> None:
        """Healthy, idle, all blocks free, and a plain request is answered."""
        assert self.client.get("/health").status_code == 200
        plain = self.client.post("/generate", json={"inputs": "Hi", "parameters": {"max_new_tokens": 2}})
        assert plain.status_code == 200 and plain.json()["generated_text"], plain.text
        assert self.shard.loop is not None
        self.steps()
        load = self.shard.loop.snapshot()
        assert (load.running, load.queued, load.blocks_free) == (0, 0, load.blocks_total)


def _error_model(path: str) -> type[object]:
    """The shape of a route's errors."""
    if is_anthropic(path):
        return anthropic_answers.AnthropicErrorResponse
    return openai_answers.OpenAIErrorResponse if path.startswith("/v1/") else answers.ErrorResponse


def check_error(path: str, answer: httpx.Response) -> None:
    """An error has a shape that the document tells of, is short, and leaks nothing."""
    assert len(answer.content) < 2000, "an error does not repeat what the client wrote"
    if answer.headers.get("content-type", "").startswith("application/json"):
        TypeAdapter(_error_model(path)).validate_json(answer.content)
    else:
        assert not path.startswith("/v1/") and answer.text.startswith(TEXTS), (path, answer.status_code, answer.text[:300])
    assert not LEAKS.search(answer.text), answer.text


@contextmanager
def opened(model: ServedModel, watch: Watch, settings: Mapping[str, Any]) -> Iterator[ServerUnderTest]:
    """A instance on a loopback socket."""
    shard = Shard(model.tokenizer, WarmupPlan(max_row_tokens=512), grammars=True)
    given = Settings(max_concurrent_requests=64, max_total_tokens=500, **settings)
    with serving(lambda generator: create_app(given, model, generator), shard.opening, given) as served:
        instance = ServerUnderTest(served, shard, watch)
        with instance.client:
            yield instance
    assert shard.closed.wait(_SECONDS)
