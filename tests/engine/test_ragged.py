"""Ragged steps against rows that run one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import DynamicCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.engine.tiny_configs import TRANSFORMERS_5
from tests.engine.tiny_models import PROMPTS, Schedule, compare, expected_tokens, ragged_schedule
from tgi_core.backend import Capacity, Grant
from tgi_core.backend.session import Session


def test_schedule_equals_generate(llama: Path, opened: tuple[Session, Capacity]) -> None:
    """Chunks, joins and early leaves give token for token what transformers generates."""
    made = ragged_schedule(*opened)
    opened[0].clear(None)
    for expected, id in zip(expected_tokens(llama), made, strict=True):
        assert made[id] == expected[: len(made[id])] and made[id]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_schedule_gives_the_same_tokens(opened: tuple[Session, Capacity], data: st.DataObject) -> None:
    """Whatever the chunks, the pauses, the joins and the mates: a row's float32 tokens are its own."""
    session, capacity = opened
    run, count = Schedule(session, capacity), data.draw(st.integers(1, 3), label="rows")
    base = data.draw(st.integers(0, 10**6)) * 10 + 10**7
    left = {base + i: len(PROMPTS[i]) for i in range(count)}
    waiting = list(left)
    try:
        while waiting or any(len(run.tokens[id]) < 4 for id in left):
            joins = [waiting.pop(0) for _ in range(data.draw(st.integers(0 if run.tokens else 1, 1))) if waiting]
            grants = tuple(grant(run, left, id, data) for id in left if id in run.tokens)
            requests = []
            for id in joins:
                take = data.draw(st.integers(1, left[id]))
                requests.append(run.request(id, PROMPTS[id - base], take))
                left[id] -= take
            if requests or run.tokens:
                run.step(*requests, grants=grants)
    finally:
        session.clear(None)
    for i in range(count):
        assert run.tokens[base + i][:4] == one_at_a_time(session, capacity, i)[:4]


def grant(run: Schedule, left: dict[int, int], id: int, data: st.DataObject) -> Grant:
    """Any take that the row may have; at least 1 unless it has made enough."""
    if left[id]:
        take = data.draw(st.integers(1, left[id]))
        left[id] -= take
        return Grant(id, take)
    return Grant(
        id,
        data.draw(st.integers(0, 1)) if len(run.tokens[id]) >= 1 and data.draw(st.booleans()) else int(len(run.tokens[id]) < 9),
    )


_alone: dict[int, list[int]] = {}


def one_at_a_time(session: Session, capacity: Capacity, index: int) -> list[int]:
    """Greedy tokens of a prompt by itself, in one chunk."""
    if index not in _alone:
        run = Schedule(session, capacity)
        id = 10**8 + index
        run.step(run.request(id, PROMPTS[index], len(PROMPTS[index])))
        while len(run.tokens[id]) < 4:
            run.step()
        session.clear(None)
        _alone[index] = run.tokens[id]
    return _alone[index]


TEN = ("gpt2", "mistral", "gemma2", "mixtral", "qwen3", "phi3", "gpt_oss", "deepseek_v3", "starcoder2", "gpt_neox")


STATES = ("mamba", "bamba") if hasattr(DynamicCache, "update_conv_state") else ()
"""Types with states; transformers 4 has a cache of its own for each."""


BY_ROW = ("doge",) if TRANSFORMERS_5 else ("jetmoe",)
UNUSUAL = [name for name in ("apertus", "emu3", "gemma4") if name in CONFIG_MAPPING and (TRANSFORMERS_5 or name != "emu3")]


@pytest.mark.parametrize("model_type", UNUSUAL)
def test_unusual_configs_are_ragged(model_type: str, tmp_path: Path) -> None:
    """Parameters without dimensions, an integer that stands for padding and cannot be unset, and inputs per layer that put it in place
    of images' tokens."""
    outcome = compare(model_type, tmp_path)
    assert (outcome.verdict, outcome.path) == ("exact", "ragged"), outcome.note


@pytest.mark.parametrize("model_type", [*TEN, *BY_ROW, "mamba", "bamba", "rwkv"])
def test_model_types_are_exact(model_type: str, tmp_path: Path) -> None:
    """Each type's tokens over the session hooks equal transformers' own: ten ragged ones, one that attends row by row, two with
    states, one with its own cache."""
    outcome = compare(model_type, tmp_path)
    assert outcome.verdict == "exact", outcome.note
    expected = "by row" if model_type in BY_ROW else "ragged" if model_type in (*TEN, *STATES) else "own cache"
    assert outcome.path == expected


def test_bfloat16_runs(llama: Path) -> None:
    """The same model in bfloat16 runs the same schedule to its end."""
    from tests.engine.tiny_models import open_cpu

    session, capacity = open_cpu(llama, dtype="bfloat16")
    assert all(tokens for tokens in ragged_schedule(session, capacity).values())
    assert torch.get_default_dtype() is torch.float32


def test_longrope_rows_end_where_it_switches() -> None:
    """A row may not grow to where LongRoPE would change its mates' frequencies."""
    from transformers import Phi3Config

    from tgi_core.engine.models.build import max_positions

    rope = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    config = Phi3Config(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=1024,
        original_max_position_embeddings=256,
        rope_scaling=rope,
        pad_token_id=0,
    )
    assert max_positions(config) == 256
