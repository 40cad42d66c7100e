"""Every kind of blow against every kind of request, all of them in flight at once: no answer tells of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.engine.lora_files import make_adapter
from tests.serve.blows import BLOWS, GRAMMARS, LOSES, TOKENS, Body, ask, bodies, native, shard, tireless
from tests.serve.process import TGI, ServerProcess, served
from tests.waiting import wait_until

SECONDS = 120
WITHOUT_CORES = ("prlimit", "--core=0:0")
"""What dies of a signal leaves no file."""
_FIRST = 5
"""Events that each request has had when the blow comes."""


@dataclass
class ServerUnderTest:
    """A server, what is asked of it, and what it answers undisturbed."""

    server: ServerProcess
    bodies: dict[str, Body]
    wanted: dict[str, list[Any]]

    async def answers(self, strike: Callable[[], None] | None = None) -> dict[str, list[Any]]:
        """All answers at once; the blow, if there is one, comes when each has begun. Those that wait for a grammar are asked for first:
        the others would end meanwhile."""
        counts = dict.fromkeys(self.bodies, 0)
        asked: dict[str, asyncio.Task[list[Any]]] = {}
        begun = asyncio.Event()

        def count(kind: str) -> None:
            counts[kind] += 1
            if min(counts[kind] for kind in asked) >= _FIRST:
                begun.set()

        def counted(kind: str) -> Callable[[], None]:
            return lambda: count(kind)

        async with httpx.AsyncClient(base_url=self.server.url, timeout=SECONDS) as client:
            for kinds in (GRAMMARS, self.bodies.keys() - GRAMMARS):
                asked |= {kind: asyncio.create_task(ask(client, self.bodies[kind], counted(kind))) for kind in kinds}
                begun.clear()
                if strike is not None:
                    await asyncio.wait({asyncio.create_task(begun.wait()), *asked.values()}, return_when=asyncio.FIRST_COMPLETED)
                    assert not any(task.done() for task in asked.values()), "an answer ends before the others have begun"
            if strike is not None:
                strike()
            return dict(zip(asked, await asyncio.gather(*asked.values()), strict=True))

    def strike(self, blow: str) -> dict[str, list[Any]]:
        """The answers that are in flight when that blow comes."""
        return asyncio.run(self.answers(lambda: BLOWS[blow](self.server.child.pid)))

    def wait_healthy(self) -> None:
        """Until requests are served."""
        wait_until(lambda: httpx.get(f"{self.server.url}/health", timeout=SECONDS).status_code == 200)


def some_text(server: ServerProcess) -> str:
    """A piece of what the request with a stop sequence says late, without one."""
    _, body = native("What is 7 plus 5?", TOKENS, do_sample=True, seed=8)
    text: str = httpx.post(f"{server.url}/generate", json=body, timeout=SECONDS).json()["generated_text"]
    return text[-12:-4]


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerUnderTest, None, None]:
    """The demo model in float32 with an adapter, and the answers of one undisturbed run."""
    model = tireless(tmp_path_factory.mktemp("models") / "demo")
    adapter = make_adapter(tmp_path_factory.mktemp("adapters") / "poet", model, "q_proj", "v_proj")
    flags = (
        str(model),
        "--backend",
        "cpu",
        "--dtype",
        "float32",
        "--watchdog-floor",
        "3",
        "--lora-adapters",
        f"poet={adapter.directory}",
    )
    with served(*flags, tgi=(*WITHOUT_CORES, *TGI)) as server:
        one = ServerUnderTest(server, bodies("poet", some_text(server)), {})
        one.wanted = asyncio.run(one.answers())
        yield one
        assert server.stop() == 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("blow", BLOWS)
def test_no_answer_tells_of_a_blow(instance: ServerUnderTest, blow: str) -> None:
    """Greedy, seeded, held to a grammar, with a stop sequence, with logprobs, with top tokens, with an adapter and with tools: each
    answer is event for event the one of an undisturbed run. Where the blow was deadly there is another shard; then the same requests
    are answered alike once more."""
    before = shard(instance.server.child.pid).pid
    assert instance.strike(blow) == instance.wanted
    instance.wait_healthy()
    assert (shard(instance.server.child.pid).pid != before) is (blow in LOSES)
    assert instance.server.child.poll() is None
    if blow in ("KILL", "helpers killed"):
        assert asyncio.run(instance.answers()) == instance.wanted
