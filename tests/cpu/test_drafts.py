"""Drafts on the CPU, for models that run module by module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tgi_backend_cpu import plugin

from tests.engine.speculation_clauses import passed
from tests.engine.tiny_models import open_cpu, save_tiny, silent
from tgi_core.backend import Capabilities, Feature, OpenOptions, WarmupPlan

PLAN = WarmupPlan(max_rows=4, max_row_tokens=64, draft=4)


def said(capabilities: Capabilities) -> tuple[str, str]:
    """What the session says of drafts, and why."""
    return next((kernel.name, kernel.reason) for kernel in capabilities.kernels if kernel.part == "drafts")


@pytest.mark.parametrize(("model_type", "overrides"), [("gpt2", {"n_head": 2}), ("gemma2", {})], ids=["gpt2", "gemma2"])
def test_clauses(model_type: str, overrides: dict[str, Any], tmp_path: Path) -> None:
    """Models of transformers' modules keep every clause about drafts, one with windows among them."""
    folder = save_tiny(model_type, tmp_path, **overrides)

    def open(options: OpenOptions) -> object:
        return plugin.backend_open(options, silent)

    assert passed(open, folder, but=("speculation.ahead",))


@pytest.mark.parametrize(
    ("model_type", "dtype", "reason"),
    [
        ("mamba", "float32", "cannot be rolled back"),
        ("deepseek_v3", "float32", "attention by torch"),
        ("mixtral", "float32", "logits of several tokens of a row differ from those of one at a time by "),
    ],
)
def test_models_that_run_none(model_type: str, dtype: str, reason: str, tmp_path: Path) -> None:
    """A cache of the model's own, attention whose bits depend on the number of queries, and experts whose bits do: a plan that asks for
    drafts gets none, the session says why, and drafts are refused as any that are not declared."""
    session, capacity = open_cpu(save_tiny(model_type, tmp_path), PLAN, dtype=dtype)
    assert capacity.draft == 0 and Feature.SPECULATION not in session.capabilities().features
    name, why = said(session.capabilities())
    assert name == "none" and reason in why


def test_drafts_run_only_where_they_change_nothing(tmp_path: Path) -> None:
    """A model that runs drafts says so, and promises what the plan asks for."""
    session, capacity = open_cpu(save_tiny("gpt2", tmp_path, n_head=2), PLAN, dtype="bfloat16")
    assert capacity.draft == 4 and Feature.SPECULATION in session.capabilities().features
    assert said(session.capabilities()) == ("run", "")
