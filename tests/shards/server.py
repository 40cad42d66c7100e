"""A router in front of a shard that lies."""

from __future__ import annotations

import re
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.serve.process import TGI, ServerProcess, started
from tests.shards.lying import Liar, Lie, lying
from tests.waiting import wait_until
from tgi_core.model_files import DEMO
from tgi_core.tokenizer import Tokenizer

SECONDS = 60
PATIENCE = ("--watchdog-floor", "3")


def parameters(**more: Any) -> dict[str, Any]:
    """A request that goes on for a while."""
    return {"max_new_tokens": 24, "details": True, "return_full_text": False, **more}


BODIES = [
    {"inputs": "What is 7 plus 5?", "parameters": parameters(max_new_tokens=32)},
    {"inputs": "Once upon a time", "parameters": parameters(do_sample=True, seed=3, temperature=1.25)},
    {"inputs": "The sea", "parameters": parameters(repetition_penalty=1.25)},
]


def bare(response: httpx.Response) -> Any:
    """What an answer says, but for what a restart may tell apart: nothing."""
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["generated_text"], answer["details"]["tokens"]


@dataclass
class ServerUnderTest:
    """A router before a liar."""

    liar: Liar
    server: ServerProcess
    path: Path

    def post(self, body: dict[str, Any]) -> httpx.Response:
        """One request."""
        return httpx.post(f"{self.server.url}/generate", json=body, timeout=SECONDS)

    def all(self) -> list[httpx.Response]:
        """All requests at once: the shard makes no step until the router has them all."""
        with ThreadPoolExecutor(len(BODIES)) as threads:
            with self.liar.held():
                answers = [threads.submit(self.post, body) for body in BODIES]
                wait_until(lambda: self.waiting() == len(BODIES))
            return [answer.result() for answer in answers]

    def waiting(self) -> int:
        """Requests that wait or run."""
        told = httpx.get(f"{self.server.url}/metrics", timeout=SECONDS).text
        return sum(int(count) for count in re.findall(r"^tgi_(?:queue_size|batch_current_size) (\d+)", told, re.M))

    def wait_healthy(self) -> None:
        """Until requests are served; AssertionError if they never are."""
        wait_until(lambda: httpx.get(f"{self.server.url}/health", timeout=SECONDS).status_code == 200)

    def losses(self) -> list[str]:
        """The reasons in the log."""
        return re.findall(r"the shard is lost: (.*)", "".join(self.server.lines))


@contextmanager
def instance(
    tokenizer: Tokenizer, folder: Path, upstream_tgi: bool, *flags: str, **options: Any
) -> Generator[ServerUnderTest, None, None]:
    """A router in front of a shard that lies when it is told to."""
    folder.chmod(0o700)
    path = folder / "shard"
    limits = ("--max-total-tokens", "64", "--max-batch-prefill-tokens", "64") if upstream_tgi else ()
    command = [*TGI, "router", "--shard", f"unix:{path}", str(DEMO), "--hostname", "127.0.0.1", "--port", "0", *PATIENCE, *limits]
    with lying(tokenizer, path, upstream_tgi, **options) as liar, started([*command, "--drain-delay", "0", *flags]) as server:
        yield ServerUnderTest(liar, server, path)


def survives(one: ServerUnderTest, wanted: list[Any], lie: Lie, excuse: str = "$.") -> None:
    """The lie is told once: the router says what it was, leaves the shard and comes back to it, and every answer is the one of a shard
    that is true; or an error with that excuse, where the shard cannot go on with it."""
    before = len(one.losses())
    one.liar.arm(lie)
    answers = one.all()
    assert one.liar.told == 1
    [reason] = one.losses()[before:]
    assert re.search(lie.says, reason), reason
    for answer, right in zip(answers, wanted, strict=True):
        assert re.search(excuse, answer.text) or bare(answer) == right
    one.wait_healthy()
    assert one.server.child.poll() is None
    assert bare(one.post(BODIES[0])) == wanted[0]
