"""Tensor parallelism: two ranks on this machine share a model and answer as one."""

from __future__ import annotations

from tgi_conformance.calls import Decode, Filter, Prefill
from tgi_conformance.clause import clause
from tgi_conformance.clauses.mates import company, ways
from tgi_conformance.golden import Golden, adapted_golden
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.session_setup import Setup
from tgi_conformance.verdict import Level, Violation
from tgi_core.backend import Grant, UnknownBatch, UnknownRequest, Unsupported


def _stage(scene: Scene, golden: str | None = None) -> Stage:
    """Open a session of two ranks. Raises Violation."""
    try:
        return Stage(scene.play(Setup(golden=golden, ranks=2)), scene.seed)
    except Unsupported as error:
        raise Violation("ranks", f"tensor_parallel is declared, but a group of two ranks raised Unsupported: {error}") from error


@clause(
    "ranks.refusal",
    "A group of ranks is either refused, or it opens, reports the same limits on each rank, and runs.",
    Level.L2,
    needs=("tensor_parallel",),
)
def opens(scene: Scene) -> None:
    """Two ranks over loopback, closed and opened again."""
    for _ in range(2):
        stage = _stage(scene)
        stage.decode(stage.start(stage.request(stage.prompts[0])), steps=2)
        stage.play.session.close()


@clause(
    "ranks.tokens",
    "Ranks that share a model generate the tokens of the golden transcripts.",
    Level.L2,
    needs=("tensor_parallel",),
    situations=("several rows share a step",),
    rows=2,
)
def tokens(scene: Scene) -> None:
    """All greedy cases of one checkpoint, together."""
    golden = Golden.load(adapted_golden(scene.target.device_kind))
    stage = _stage(scene, golden.name)
    cases = [case for case in golden.cases if case.id.startswith("greedy")]
    room = stage.capacity.max_rows
    requests = [stage.request(case.prompt, want=stage.wants) for case in cases[:room]]
    stage.decode(stage.start(*requests), steps=len(cases[0].tokens) - 1)


@clause(
    "ranks.verbs",
    "Every call and every refusal is the same on all ranks, and rank 0's tokens enter the other ranks' caches.",
    Level.L2,
    needs=("tensor_parallel",),
    situations=("batches merge", "a row leaves", "decode refused", "filter refused", "everything is cleared"),
    rows=2,
)
def verbs(scene: Scene) -> None:
    """Rows sampled in many ways merge, leave and are cleared, with invalid calls in between."""
    stage = _stage(scene)
    requests = company(stage, ways(stage)[:4])
    first, second = stage.start(*requests[:2]), stage.start(*requests[2:])
    batch = stage.decode(second, first, steps=3)
    stage.refuse(UnknownBatch, Decode((first,)))
    stage.refuse(UnknownRequest, Filter(batch, (requests[0].id, 777_777)))
    batch = stage.decode(stage.filter(batch, [request.id for request in requests[1:]]), steps=2)
    stage.refuse(UnknownRequest, Decode((batch,), (Grant(requests[0].id, 1),)))
    stage.refuse(UnknownBatch, Prefill((stage.request(stage.prompts[1]),), second))
    stage.clear(None)
    stage.decode(stage.start(stage.request(stage.prompts[2], want=stage.wants)), steps=2)
