"""What a request leaves behind when it has ended: nothing."""

from __future__ import annotations

import gc
import logging
import socket
import sys
from array import array
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.router.conftest import Serve
from tests.router.serving import Served
from tests.router.test_leaving import BODY

ROUND, ROUNDS = 100, 4


def ask(served: Served, number: int) -> None:
    """A request like no other, of one of several kinds."""
    headers = {
        "x-request-timeout": str(1_000_000 + number),
        "x-request-id": f"id-{number}",
        "x-cache-salt": f"salt-{number}",
        "user-agent": f"agent-{number}",
        "content-type": "application/json",
    }
    given: dict[str, Any] = {"inputs": "Hi", "parameters": {"max_new_tokens": 2}}
    match number % 5:
        case 0:
            assert served.client.post("/generate", json=given, headers=headers).status_code == 200
        case 1:
            assert "data: " in served.client.post("/generate_stream", json=given, headers=headers).text
        case 2:
            given["parameters"]["temperature"] = -1
            assert served.client.post("/generate", json=given, headers=headers).status_code == 422
        case 3:
            text = {"prompt": ["a", "b"], "max_tokens": 2, "stream": True}
            assert "data: " in served.client.post("/v1/completions", json=text, headers=headers).text
        case _:
            with served.send("/generate_stream", BODY) as connection:
                assert connection.recv(1000)
                connection.shutdown(socket.SHUT_WR)


def held() -> int:
    """How many blocks of memory Python's objects take."""
    gc.collect()
    return sys.getallocatedblocks()


@pytest.fixture
def silent() -> Iterator[None]:
    """pytest keeps every record of a log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("silent")
def test_no_object_stays(serve: Serve) -> None:
    """However many requests have ended, there are as many objects as before; something kept of each would be one for each at least."""
    served, generator = serve()
    seen = array("l", bytes(8 * ROUNDS))
    for turn in range(ROUNDS):
        for number in range(turn * ROUND, (turn + 1) * ROUND):
            ask(served, number)
        for told in (generator.submitted, generator.cancelled):
            while not told.empty():
                told.get()
        seen[turn] = held()
    assert min(later - before for before, later in pairwise(seen)) < 0.8 * ROUND, seen
