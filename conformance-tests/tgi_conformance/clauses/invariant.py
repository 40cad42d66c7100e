"""Batch invariance: where declared, a row's tokens and logprobs are bit-identical whatever else is in the batch, in every dtype."""

from __future__ import annotations

from collections.abc import Iterator

from tgi_conformance.clause import clause
from tgi_conformance.clauses.chunked_prefill import LONG, finish
from tgi_conformance.clauses.mates import company, ways
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.session_setup import Setup
from tgi_conformance.target import wide_plan
from tgi_conformance.verdict import Level
from tgi_core.backend import Feature, Unsupported

_DTYPES = ("float32", "bfloat16", "float16")


def invariant_stages(scene: Scene) -> Iterator[Stage]:
    """Yield stages that compare bits with rows run alone, with room for many: in the run's dtype, and in every other one that opens and
    declares invariance. The dtype of the newest session comes first: a device may have room for one."""
    plan, newest = wide_plan(scene.declared[0].block_sizes), scene.alone.sessions.newest_dtype
    for dtype in sorted({scene.target.dtype, *_DTYPES}, key=lambda dtype: (dtype != newest, dtype != scene.target.dtype, dtype)):
        try:
            play = scene.play(Setup(plan, dtype=dtype, bits=True), shared=True)
        except Unsupported:
            continue
        if Feature.BATCH_INVARIANT in play.oracle.capabilities.features:
            scene.situations[f"bits compared in {dtype}"] += 1
            yield Stage(play, scene.seed)


@clause(
    "invariant.mates",
    "A row's tokens and logprobs are the same bits alone and with any number of batch mates.",
    Level.L2,
    needs=("batch_invariant",),
    situations=("several requests start together",),
    rows=2,
)
def mates(scene: Scene) -> None:
    """A full batch, each row sampled in its own way; then fewer and fewer rows."""
    for stage in invariant_stages(scene):
        requests = company(stage, ways(stage))
        batch = stage.decode(stage.start(*requests), steps=4)
        while len(requests) > 1:
            requests = requests[1::2]
            batch = stage.decode(stage.filter(batch, [request.id for request in requests]), steps=2)


@clause(
    "invariant.chunks",
    "A prompt in chunks produces the same bits, and so do the rows next to it.",
    Level.L2,
    needs=("batch_invariant", "chunked_prefill"),
    situations=("a prompt begins in part", "a prompt goes on"),
    rows=2,
)
def chunks(scene: Scene) -> None:
    """In small and large chunks, next to a row that decodes."""
    for stage in invariant_stages(scene):
        for chunk in (1, 5, 16):
            request = stage.request(stage.varied(LONG), take=chunk, want=stage.wants)
            batch = stage.start(request, stage.request(stage.prompts[0], want=stage.wants))
            stage.filter(stage.decode(finish(stage, batch, request.id, chunk), steps=3), ())


@clause(
    "invariant.merge",
    "Rows produce the same bits after batches merge and rows leave, whatever their position in the batch.",
    Level.L2,
    needs=("batch_invariant",),
    situations=("batches merge", "a row leaves"),
    rows=3,
)
def merge(scene: Scene) -> None:
    """Rows started alone swap places in a merge; then the last two leave."""
    for stage in invariant_stages(scene):
        requests = company(stage, ways(stage)[:4])
        batches = [stage.decode(stage.start(request), steps=age) for age, request in enumerate(requests, 1)]
        batch = stage.decode(*reversed(batches), steps=3)
        stage.decode(stage.filter(batch, [request.id for request in requests[:-2]]), steps=3)
