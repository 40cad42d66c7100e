"""Sessions on the emulated static device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tgi_backend_static_cpu.kit import COARSE, StaticCpuKit

from tests.engine.ahead.opened import PLAN
from tests.engine.tiny_models import silent
from tgi_core.backend import Capacity, OpenOptions, WarmupPlan
from tgi_core.backend.session import Session
from tgi_core.engine.static.grid import GridRules
from tgi_core.engine.static.session import open_static

FLAT = COARSE
TABLES = GridRules(takes=COARSE.takes, flat=False)


def open_on_static(model: Path, plan: WarmupPlan = PLAN, rules: GridRules = FLAT, **options: Any) -> tuple[Session, Capacity]:
    """A warmed session in float32."""
    kit = StaticCpuKit(rules)
    session = Session(open_static(OpenOptions(str(model), dtype="float32", **options), kit, silent), "static-cpu")
    return session, session.warmup(plan, silent)
