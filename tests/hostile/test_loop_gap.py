"""No body of up to two megabytes holds up the event loop, on which everybody else is served."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.hostile.bodies import Case, conversations, texts, values

LONGEST_S = 0.1
"""Or a few times what the loop of this machine takes over small requests."""
TRIES = 5
"""A body that holds up the loop does so each time; a machine that is short of time does so now and then."""
KINDS = {"values": values, "conversations": conversations, "texts": texts}
PLAIN: Case = ("plain", "/generate", b'{"inputs":"Hi"}')


class Measured:
    """A server that tells its longest gap."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.url = f"http://127.0.0.1:{self._line()}"
        self.client = httpx.Client(base_url=self.url, timeout=120, headers={"content-type": "application/json"})

    def gap(self) -> float:
        """The longest since this was last asked."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._line())

    def send(self, case: Case) -> int:
        """The status of the answer, which there is; what is too much is told at once."""
        _, path, body = case
        return self.client.post(path, content=body).status_code

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture(scope="module")
def server() -> Iterator[Measured]:
    """One for all bodies."""
    command = [sys.executable, "-m", "tests.hostile.loop_gap"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        measured = Measured(process)
        with measured.client:
            yield measured


@pytest.fixture(scope="module")
def bound(server: Measured) -> float:
    """What a gap may last, in seconds."""
    for _ in range(50):
        assert server.send(PLAIN) == 200
    return max(LONGEST_S, 10 * server.gap())


@pytest.mark.parametrize("kind", KINDS)
def test_one_at_a_time(server: Measured, bound: float, kind: str) -> None:
    """Each body is answered, by a refusal or otherwise, and the loop is never held up."""
    shortest = {case[0]: min(_gaps(server, case, bound)) for case in KINDS[kind]()}
    assert {name: gap for name, gap in shortest.items() if gap > bound} == {}


def test_eight_at_once(server: Measured, bound: float) -> None:
    """Neither is it by eight clients with the longest texts, of whom some are told that the server is busy."""
    [case] = [case for case in texts() if case[0] == "tokenize words"]

    def gap() -> float:
        server.gap()
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(server.send, case) for _ in range(8)]
            assert server.send(PLAIN) == 200
            assert {each.result() for each in asked} <= {200, 429}
        return server.gap()

    assert any(gap() <= bound for _ in range(TRIES))


def _gaps(server: Measured, case: Case, bound: float) -> Iterator[float]:
    """The longest gap of each try, until one is within the bound."""
    for _ in range(TRIES):
        server.gap()
        status = server.send(case)
        assert status in (200, 400, 413, 422, 429), (case[0], status)
        gap = server.gap()
        assert server.send(PLAIN) == 200
        yield gap
        if gap <= bound:
            return
