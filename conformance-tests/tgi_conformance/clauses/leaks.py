"""Hours of traffic leave nothing behind: memory and compiled shapes stay as they were after warmup."""

from __future__ import annotations

from tgi_conformance.clause import clause
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.verdict import Level, Violation

_ROUNDS = 24


def _round(stage: Stage, index: int) -> None:
    """Start, merge, filter and drop varying numbers of rows."""
    room = stage.capacity.max_rows - 1
    batches = [stage.start(*(stage.request(prompt) for prompt in stage.prompts[: min(1 + index % 3, room)]))] if room else []
    batches.append(stage.start(stage.request(stage.prompts[index % len(stage.prompts)])))
    batch = stage.decode(*batches, steps=1 + index % 4)
    rows = [row.request.id for row in stage.play.oracle.rows]
    batch = stage.filter(batch, rows[1:])
    stage.clear(batch if batch and index % 2 else None)


@clause("leaks.memory", "The memory that stats reports does not grow with traffic.", Level.L3)
def memory(scene: Scene) -> None:
    """Over the later half of the rounds of mixed traffic, memory does not grow."""
    stage = scene.stage()
    sizes = []
    for index in range(_ROUNDS):
        _round(stage, index)
        sizes.append(sum(share.num_bytes for share in stage.play.session.stats().memory))
    half = _ROUNDS // 2
    scene.figures["bytes grown per round"] = (sizes[-1] - sizes[half - 1]) / half
    if sizes[-1] > sizes[half - 1]:
        raise Violation("leak", f"stats reports {sizes[half - 1]} bytes after {half} rounds and {sizes[-1]} after {_ROUNDS}")


@clause("leaks.compiles", "Nothing is compiled after warmup.", Level.L3)
def compiles(scene: Scene) -> None:
    """Rounds of mixed traffic, with several batch sizes and lengths."""
    stage = scene.stage()
    before = stage.play.session.stats().compiles
    for index in range(_ROUNDS // 2):
        _round(stage, index)
    after = stage.play.session.stats().compiles
    if after > before:
        raise Violation("compile", f"{after - before} shapes were compiled during traffic")
