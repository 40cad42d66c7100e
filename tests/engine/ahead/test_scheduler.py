"""The scheduler over a real model that is one step ahead: requests come, stop and leave while their next step is on the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.ahead.late import LateQueue
from tests.engine.ahead.opened import open_on
from tests.engine.tiny_models import VOCAB
from tests.scheduler.device import Device, Script, play, request
from tgi_core.backend import WarmupPlan
from tgi_core.scheduler import Scheduler
from tgi_core.server.model_server import ModelServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import ShardInfo

PLAN = WarmupPlan(max_rows=4, max_row_tokens=64, max_step_tokens=24, num_blocks=12)
"""A cache that does not hold four rows to their ends: some are preempted, and go on."""


def script() -> Script:
    """Greedy and drawn requests of many lengths, some with a common beginning; every fourth client leaves early."""
    items: Script = []
    for index in range(24):
        prompt = (*((7,) * 17 if index % 3 == 0 else ()), *((5 * index + 3 * i) % VOCAB for i in range(1 + 4 * index % 19)))
        wanted = request(prompt, 3 + 7 * index % 22, seed=index if index % 2 else None)
        items.append((index % 3, wanted, 2 + index % 5 if index % 4 == 3 else None))
    return items


def played(queue: LateQueue | None, model: Path, tokenizer: Tokenizer) -> tuple[dict[int, list[int]], set[int]]:
    """What every request got, and who left."""
    session, capacity = open_on(queue, model, PLAN)
    info = ShardInfo("tiny", "late", "cpu", "float32", (1, 1), session.capabilities())
    one = Device(Scheduler(info.capabilities, capacity), ModelServer(session, tokenizer, info), session)  # type: ignore[arg-type]
    _, left = play(one, script())
    assert one.scheduler.snapshot.blocks_free == one.scheduler.snapshot.blocks_total
    assert all(event.error is None for event in one.ended.values())
    return one.tokens, left


@pytest.mark.parametrize("graphs", [None, "switched off"])
def test_everyone_gets_their_own(llama: Path, demo_tokenizer: Tokenizer, graphs: str | None) -> None:
    """The tokens are those of lock step, for whoever stayed; one who left has a part of them."""
    wanted, _ = played(None, llama, demo_tokenizer)
    found, left = played(LateQueue(graphs=graphs), llama, demo_tokenizer)
    for key, tokens in wanted.items():
        mine = found.get(key, [])
        assert mine[: len(tokens)] == tokens[: len(mine)], key
        assert key in left or mine == tokens
