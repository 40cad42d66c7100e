"""One step ahead, the tokens are those of a session that takes a step at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.ahead.late import LateKit, LateQueue
from tests.engine.tiny_models import open_cpu, ragged_schedule, silent
from tgi_core.backend import Capacity, OpenOptions, WarmupPlan
from tgi_core.backend.session import Session
from tgi_core.engine.opening import open_session

PLAN = WarmupPlan(max_rows=8, max_row_tokens=96, max_step_tokens=128, num_blocks=64)


def open_late(model: Path, queue: LateQueue, plan: WarmupPlan = PLAN, **options: object) -> tuple[Session, Capacity]:
    """A session over a late device."""
    session = Session(open_session(OpenOptions(str(model), dtype="float32", **options), LateKit(queue), silent), "late")
    return session, session.warmup(plan, silent)


@pytest.mark.parametrize("graphs", [None, "switched off"])
def test_same_tokens(llama: Path, graphs: str | None) -> None:
    """Over chunks, joins, mixed steps and a row that leaves, replayed or not."""
    wanted = ragged_schedule(*open_cpu(llama, dtype="float32"))
    session, capacity = open_late(llama, LateQueue(graphs=graphs))
    print(session.capabilities().kernels, capacity)
    assert ragged_schedule(session, capacity) == wanted
    session.close()
