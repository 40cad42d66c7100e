"""Warmed sessions of the backend `neuron`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tgi_backend_neuron import plugin

from tests.engine.tiny_models import silent
from tgi_core.backend import Capacity, OpenOptions, Progress, WarmupPlan
from tgi_core.backend.session import Session

PLAN = WarmupPlan(max_rows=3, max_row_tokens=48, num_blocks=3)


def open_neuron(
    model: Path, plan: WarmupPlan = PLAN, progress: Progress = silent, dtype: str = "float32", **options: Any
) -> tuple[Session, Capacity]:
    """A warmed session."""
    session = Session(plugin.backend_open(OpenOptions(str(model), dtype, **options), silent), "neuron")
    return session, session.warmup(plan, progress)
