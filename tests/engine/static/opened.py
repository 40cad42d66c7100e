"""Sessions on the emulated static device, with so few programs that they compile in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tgi_backend_static_cpu.kit import StaticCpuKit

from tests.engine.ahead.opened import PLAN
from tests.engine.tiny_models import silent
from tgi_core.backend import Capacity, OpenOptions, Progress, WarmupPlan
from tgi_core.backend.session import Session
from tgi_core.engine.static.buckets import BucketRules
from tgi_core.engine.static.session import open_static


class Few(BucketRules):
    """Two numbers of rows."""

    def row_sizes(self, max_rows: int) -> tuple[int, ...]:
        """Half of the rows, and all."""
        return (max_rows // 2, max_rows)


FLAT = Few(takes=(16, 48), waste=0.4)
TABLES = Few(takes=(16, 48), flat=False)


def open_on_static(
    model: Path, plan: WarmupPlan = PLAN, kit: StaticCpuKit | None = None, progress: Progress = silent, **options: Any
) -> tuple[Session, Capacity]:
    """A warmed session in float32."""
    session = Session(
        open_static(OpenOptions(str(model), dtype="float32", **options), kit or StaticCpuKit(FLAT), silent), "static-cpu"
    )
    return session, session.warmup(plan, progress)
