"""Rank 1 of a pair: runs the same schedule as the test that started it, on one checkpoint after the other.

python -m tests.engine.rank_worker FD
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.engine.rank_pair import answer
from tgi_core.backend import Group, WarmupPlan

PLAN = WarmupPlan(max_rows=4, max_row_tokens=64, max_step_tokens=32, draft=3)


def run_rank(folder: Path, store: Path, rank: int, quantize: str = "") -> dict[str, Any]:
    """What one of two ranks makes of a checkpoint. Prompts are scored in chunks, whose logits are gathered one by one."""
    from tests.engine.tiny_models import drafted_schedule, open_cpu, ragged_schedule, scored_prompt
    from tgi_core.engine import prompt_scores
    from tgi_core.engine.collectives import Collectives

    prompt_scores.CHUNK = 4
    meet = Collectives.meet
    group = Group(rank, 2, f"file:{store}", rank, 2)
    meetings: list[None] = []
    with patch.object(Collectives, "meet", lambda ranks: meetings.append(meet(ranks))):
        session, capacity = open_cpu(folder, PLAN, dtype="float32", group=group, quantize=quantize)
    try:
        scores = scored_prompt(session, capacity)
        tokens = {str(id): made for id, made in ragged_schedule(session, capacity).items()}
        drafted, counts = drafted_schedule(session, capacity) if capacity.draft else ({}, ())
        memory = {item.name: item.num_bytes for item in capacity.memory}
        limits = [capacity.groups[0].num_blocks, capacity.max_rows, capacity.max_row_tokens, capacity.max_step_tokens]
        groups = [group.kind.value for group in capacity.groups]
        made = {"groups": groups, "tokens": tokens, "drafted": list(drafted.values()), "counts": sorted(counts), "scores": scores}
        return made | {"meetings": len(meetings), "memory": memory, "limits": limits}
    finally:
        session.close()


if __name__ == "__main__":
    answer(run_rank)
