"""More requests than can be answered, for a moment each."""

from __future__ import annotations

import asyncio
from statistics import mean

from tests.soak.flood import request
from tests.soak.overload import TOKENS, ask, course, serving, silent
from tests.waiting import wait_until


def test_overload() -> None:
    """At ten and a hundred times what the server can do, and with a crowd that tries again at once, every request is answered: in full,
    or with 429 and the time to come back; probes always are. A client that does as it is told gets in with fewer tries than a flood. Once
    the server has read that all have left, it takes requests as before."""
    with serving() as server:
        parts = {part["part"]: part for part in asyncio.run(course(server, 1.0, crowd=100))}
        wait_until(lambda: asyncio.run(ask(server.port, request(TOKENS))).status == 200)
    for name in ("10x", "100x", "crowd"):
        part = parts[name]
        assert part["lost"] == 0 and part["statuses"].keys() <= {"200", "429"}, part
        assert part["statuses"].get("429", 0) >= part["statuses"].get("200", 0), part
    for name in ("flood", "flood high"):
        part = parts[name]
        assert mean(part["tries"]) < part["sent"] / max(part["statuses"].get("200", 0), 1), part


def test_clients_that_read_nothing() -> None:
    """They hold every row, and others are answered all the same."""
    with serving(40, 4, 0.5) as server:
        assert len(asyncio.run(silent(server, 20))["waits"]) == 3
