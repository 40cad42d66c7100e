"""Models whose layers attend to positions that an index selects."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.engine.mixed_rows import check_rows_alone
from tests.engine.tiny_models import PROMPTS, Schedule, expected_tokens, open_cpu, path_of, ragged_schedule, save_tiny
from tgi_core.backend import Grant, WarmupPlan
from tgi_core.engine.attention.indexing import joined
from tgi_core.engine.attention.torch_sdpa import selected_mask

ROWS = 12
FAMILIES = [name for name in ("deepseek_v32", "glm_moe_dsa", "axk2") if name in CONFIG_MAPPING]
"""transformers 4 has none. Some layers of the second one use the index of the layer before."""


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_generate(family: str, tmp_path: Path) -> None:
    """With an index that selects fewer positions than rows have; rows in one batch make the tokens that they make alone."""
    save_tiny(family, tmp_path)
    session, capacity = open_cpu(tmp_path, WarmupPlan(max_rows=ROWS, max_row_tokens=32), dtype="float32")
    assert path_of(session) == "ragged"
    made = ragged_schedule(session, capacity)
    session.clear(None)
    assert all(made[id] and made[id] == tokens[: len(made[id])] for id, tokens in enumerate(expected_tokens(tmp_path), 1))
    check_rows_alone(session, capacity, ROWS, first_chunked=7)
    session.close()


@pytest.mark.parametrize("family", FAMILIES[:1])
def test_what_is_selected_matters(family: str, tmp_path: Path) -> None:
    """With an index that selects all positions, the same weights make other tokens; chunks of a prompt make the tokens of the whole."""
    made = {}
    for count in (4, 64):
        save_tiny(family, tmp_path / str(count), index_topk=count)
        session, capacity = open_cpu(tmp_path / str(count), dtype="float32")
        for parts in ((13,), (5, 1, 7)):
            run = Schedule(session, capacity)
            run.step(run.request(1, PROMPTS[2], parts[0]))
            for part in parts[1:]:
                run.step(grants=(Grant(1, part),))
            for _ in range(6):
                run.step()
            made[count, parts] = run.tokens[1][:6]
            session.clear(None)
        session.close()
    assert made[4, (13,)] == made[4, (5, 1, 7)] and made[64, (13,)] == made[64, (5, 1, 7)]
    assert made[4, (13,)] != made[64, (13,)]


def test_selections_of_several_rows() -> None:
    """Rows that select fewer positions are padded; positions beyond a row count for nothing."""
    selected = joined([torch.tensor([[2, 0]]), torch.tensor([[1, 3, 0], [5, 1, 2]])])
    assert selected.tolist() == [[2, 0, -1], [1, 3, 0], [5, 1, 2]]
    assert selected_mask(selected, 4).int().tolist() == [[1, 0, 1, 0], [1, 1, 0, 1], [0, 1, 1, 0]]
