"""What clients are told about trying again, and what OpenAI's own client makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.router.conftest import Serve
from tests.router.scripted import says
from tests.router.serving import Served
from tgi_core.scheduler.types import GenerationFailed, GenerationRequest, Overloaded, SchedulerError
from tgi_core.wire.types import Generation

Answers = Callable[[GenerationRequest], list[Generation | SchedulerError]]


def once(error: SchedulerError) -> tuple[Answers, list[int]]:
    """A script that fails the first time only, and its count of calls."""
    calls: list[int] = []

    def script(request: GenerationRequest) -> list[Any]:
        calls.append(1)
        return [error] if len(calls) == 1 else says("Hello")

    return script, calls


def client(served: Served) -> openai.OpenAI:
    """OpenAI's, which tries again by itself."""
    return openai.OpenAI(base_url=f"{served.client.base_url}/v1", api_key="-", max_retries=1)


@pytest.mark.parametrize("error", [Overloaded("full", 0.05), GenerationFailed("the shard was lost")])
@pytest.mark.parametrize("stream", [False, True])
def test_what_passes_is_tried_again(serve: Serve, error: SchedulerError, stream: bool) -> None:
    """A full server and a lost shard cost a client of OpenAI's a second try, and no error."""
    script, calls = once(error)
    served, _ = serve(script)
    with client(served) as ai:
        answer = ai.chat.completions.create(model="tgi", messages=[{"role": "user", "content": "Hi"}], stream=stream)
        if stream:
            assert "".join(chunk.choices[0].delta.content or "" for chunk in answer) == "Hello"
        else:
            assert answer.choices[0].message.content == "Hello"
    assert len(calls) == 2


def test_what_is_wrong_stays_wrong(serve: Serve) -> None:
    """A request that is refused for what it says is sent once."""
    served, _ = serve()
    with client(served) as ai, pytest.raises(openai.UnprocessableEntityError) as caught:
        ai.completions.create(model="tgi", prompt="", max_tokens=4)
    assert caught.value.response.headers["x-should-retry"] == "false"
    for content, status in ((b"{", 400), (b'{"prompt":3}', 422), (b'{"prompt":"' + b"x" * 3_000_000 + b'"}', 413)):
        answer = served.client.post("/v1/completions", content=content, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.headers["x-should-retry"]) == (status, "false")


@pytest.mark.parametrize(
    ("seconds", "whole", "least", "most"), [(0.0, "1", 1, 1), (0.05, "1", 25, 50), (1.0, "1", 500, 1000), (2.3, "23", 1150, 2300)]
)
def test_how_long(serve: Serve, seconds: float, whole: str, least: int, most: int) -> None:
    """When to come back is told in whole seconds, rounded up, and in milliseconds: by a time between half of what the scheduler says and
    all of it, so that those who are refused together do not come back together."""
    served, _ = serve(lambda request: [Overloaded("full", seconds)])
    for path, body in (("/generate", {"inputs": "Hi"}), ("/v1/completions", {"prompt": "Hi"})):
        answer = served.client.post(path, json=body)
        assert answer.headers["retry-after"] in whole and least <= int(answer.headers["retry-after-ms"]) <= most
        assert answer.status_code == 429 and "x-should-retry" not in answer.headers
