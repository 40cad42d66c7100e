"""One step in a hundred runs out of memory: requests take longer, and that is all."""

from __future__ import annotations

import logging

import pytest

from tests.faults.oom import PLAN, serve
from tests.faults.servers import Servers


@pytest.mark.parametrize(("kind", "requests", "p"), [("lock step", 1000, 0.01), ("one ahead", 1000, 0.01), ("engine", 80, 0.04)])
def test_out_of_memory_by_chance(servers: Servers, kind: str, requests: int, p: float) -> None:
    """In the verb, in the step, and late, each with probability p per step: no shard dies, at least 99 % complete (here: all), and
    greedy tokens are those of a clean run."""
    logging.disable(logging.WARNING)
    try:
        clean = serve(servers.open(kind, PLAN), requests, 0)
        faulty = serve(servers.open(kind, PLAN), requests, p)
    finally:
        logging.disable(logging.NOTSET)
    assert faulty.lost is None and faulty.injected > 1.5 * p * faulty.steps > 1
    assert len(faulty.failed) <= requests // 100
    assert {key: faulty.tokens[key] for key in faulty.tokens if key not in faulty.failed} == {
        key: tokens for key, tokens in clean.tokens.items() if key not in faulty.failed
    }
