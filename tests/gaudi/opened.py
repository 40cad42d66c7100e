"""Warmed sessions of the backend `gaudi`, of few programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tgi_backend_gaudi import plugin
from tgi_backend_gaudi.kit import GaudiKit

from tests.engine.static.opened import Few
from tests.engine.tiny_models import silent
from tgi_core.backend import Capacity, OpenOptions, WarmupPlan
from tgi_core.backend.session import Session

PLAN = WarmupPlan(max_rows=4, max_row_tokens=256, max_step_tokens=192, num_blocks=8)


def open_gaudi(model: Path, plan: WarmupPlan = PLAN, dtype: str = "float32", **options: Any) -> tuple[Session, Capacity]:
    """A warmed session."""
    session = Session(plugin.backend_open(OpenOptions(str(model), dtype, **options), silent), "gaudi")
    return session, session.warmup(plan, silent)


def use_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two numbers of rows, and one size of chunks: compiling takes a second."""
    monkeypatch.setattr(GaudiKit, "rules", Few(takes=(128,), waste=0.45))
