"""Soak C: the demo model with adapters on the CPU, asked in every manner there is; neither router nor shard may grow.

Much of it is new each time: grammars, schemas, salts, tools, stop strings. What is remembered of them must have a bound.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from tests.engine.lora_files import make_adapter
from tests.soak.http import Crowd, Report, soak
from tgi_core.model_files import DEMO

ADAPTERS = ("first", "second")
TOKENS = 12
CACHE_TOKENS = 1 << 14
"""So few that all of the cache's memory is in use once the first rounds are over: before that, each new block costs some."""

Call = Callable[[httpx.AsyncClient], Awaitable[None]]


class MixedCrowd(Crowd):
    """Clients of every manner."""

    async def call(self, client: httpx.AsyncClient) -> None:
        """One call, of a manner drawn at random."""
        manners: list[Call] = [
            self._plain,
            self._streamed,
            self._left,
            self._chat,
            self._regex,
            self._schema,
            self._tools,
            self._adapted,
            self._salted,
            self._refused,
            self._tokenized,
            self._sampled,
        ]
        await self.random.choice(manners)(client)

    @property
    def _number(self) -> int:
        return self.random.randrange(10**9)

    def _body(self, **parameters: Any) -> dict[str, Any]:
        return {"inputs": f"Once {self._number} upon a time", "parameters": {"max_new_tokens": TOKENS, **parameters}}

    def _conversation(self, **more: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": f"What is {self._number}?"}], "max_tokens": TOKENS, **more}

    async def _plain(self, client: httpx.AsyncClient) -> None:
        self.note(await client.post("/generate", json=self._body()))

    async def _streamed(self, client: httpx.AsyncClient) -> None:
        await self.stream(client, "/generate_stream", self._body(stop=[str(self._number)]), leaves=False)

    async def _left(self, client: httpx.AsyncClient) -> None:
        await self.stream(client, "/generate_stream", self._body(), leaves=True)

    async def _chat(self, client: httpx.AsyncClient) -> None:
        await self.stream(client, "/v1/chat/completions", self._conversation(stream=True), leaves=self.random.random() < 0.3)

    async def _regex(self, client: httpx.AsyncClient) -> None:
        grammar = {"type": "regex", "value": f"({self._number}|[a-z]{{1,9}})"}
        self.note(await client.post("/generate", json=self._body(grammar=grammar)))

    async def _schema(self, client: httpx.AsyncClient) -> None:
        schema = {"type": "object", "properties": {f"p{self._number}": {"enum": [1, 2]}}, "additionalProperties": False}
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        self.note(await client.post("/v1/chat/completions", json=self._conversation(response_format=wanted)))

    async def _tools(self, client: httpx.AsyncClient) -> None:
        parameters = {"type": "object", "properties": {"a": {"const": self._number}}, "required": ["a"]}
        tool = {"type": "function", "function": {"name": f"f{self._number}", "parameters": parameters}}
        body = self._conversation(tools=[tool], tool_choice="required")
        self.note(await client.post("/v1/chat/completions", json={**body, "max_tokens": 60}))

    async def _adapted(self, client: httpx.AsyncClient) -> None:
        self.note(await client.post("/generate", json=self._body(adapter_id=self.random.choice(ADAPTERS))))

    async def _salted(self, client: httpx.AsyncClient) -> None:
        self.note(await client.post("/generate", json=self._body(), headers={"x-cache-salt": str(self._number)}))

    async def _refused(self, client: httpx.AsyncClient) -> None:
        bad = [
            self._body(temperature=-1),
            self._body(adapter_id=f"unknown-{self._number}"),
            self._body(grammar={"type": "regex", "value": f"({self._number}"}),
            {"inputs": self._number},
        ]
        self.note(await client.post("/generate", content=json.dumps(self.random.choice(bad)), headers=JSON))

    async def _tokenized(self, client: httpx.AsyncClient) -> None:
        self.note(await client.post("/tokenize", json={"inputs": f"{self._number} words " * self.random.choice([1, 200])}))

    async def _sampled(self, client: httpx.AsyncClient) -> None:
        body = self._body(do_sample=True, seed=self._number, top_n_tokens=3, details=True, decoder_input_details=True)
        self.note(await client.post("/generate", json=body))


JSON = {"content-type": "application/json"}


def mixed(rounds: int, requests: int, seconds: float = 0.0) -> Report:
    """Rounds of so many requests each, at least `seconds` long in all."""
    with tempfile.TemporaryDirectory() as folder:
        adapters = [
            make_adapter(Path(folder) / name, DEMO, "q_proj", "down_proj", rank=4 + 4 * place, seed=place)
            for place, name in enumerate(ADAPTERS)
        ]
        named = ",".join(f"{adapter.name}={adapter.directory}" for adapter in adapters)
        flags = ("--backend", "cpu", "--lora-adapters", named, "--max-top-n-tokens", "5", "--kv-cache-tokens", str(CACHE_TOKENS))
        return soak(MixedCrowd, flags, rounds, requests, seconds)


def run(minutes: float) -> list[str]:
    """The long form. What went wrong."""
    report = mixed(rounds=30, requests=500, seconds=60 * minutes)
    print(f"{report.requests} requests, answers {report.answers}, {report.left} disconnected")
    for name, process in (("rss", "router"), ("shard_rss", "shard")):
        held = [getattr(holding, name) / 1e6 for holding in report.holdings]
        print(f"{process} {held[0]:.0f} MB at first, {max(held):.0f} at most, {report.slope(name):+.1f} bytes per request")
    return report.wrong(rss=True)
