"""Figures for readers: measured and reported, never passed or failed."""

from __future__ import annotations

import time

from tgi_conformance.clause import clause
from tgi_conformance.scenario import Scene
from tgi_conformance.target import close
from tgi_conformance.verdict import Level


@clause("speed.open", "How long a session takes to open and to warm up.", Level.L4)
def opening(scene: Scene) -> None:
    """Once."""
    begun = time.perf_counter()
    session = scene.opened(scene.target.session)
    opened = time.perf_counter()
    scene.target.warm(session)
    scene.figures |= {"open_s": opened - begun, "warmup_s": time.perf_counter() - opened}
    close(session)


@clause("speed.steps", "How long a step takes with one row, and with the reported maximum.", Level.L4)
def steps(scene: Scene) -> None:
    """The median of twenty decode steps."""
    for name, count in (("one row", 1), ("a full batch", 10**9)):
        stage = scene.stage()
        room = min(count, stage.capacity.max_rows, stage.capacity.max_prefill_rows, 64)
        requests = [stage.request(stage.prompts[index % len(stage.prompts)]) for index in range(room)]
        begun = time.perf_counter()
        batch = stage.start(*requests)
        scene.figures[f"prefill of {name}, ms"] = 1e3 * (time.perf_counter() - begun)
        times = []
        for _ in range(20):
            begun = time.perf_counter()
            batch = stage.decode(batch)
            times.append(time.perf_counter() - begun)
        scene.figures[f"decode step of {name}, ms"] = 1e3 * sorted(times)[10]
