"""A verb affects only what it names."""

from __future__ import annotations

from tgi_conformance.calls import Filter
from tgi_conformance.clause import clause
from tgi_conformance.scenario import Scene
from tgi_conformance.verdict import Level
from tgi_core.backend import UnknownRequest


@clause(
    "isolation.decode",
    "A live batch that decode does not name stays as it is.",
    Level.L1,
    situations=("a batch goes on beside others",),
    rows=2,
)
def decode(scene: Scene) -> None:
    """Decode one of two batches for some steps, then the other, then both."""
    stage = scene.stage()
    first, second = (stage.start(stage.request(prompt, want=stage.wants)) for prompt in stage.prompts[:2])
    first = stage.decode(first, steps=5)
    second = stage.decode(second, steps=3)
    stage.decode(first, second, steps=2)


@clause(
    "isolation.prefill",
    "Starting rows in a separate batch leaves the live batches as they are.",
    Level.L1,
    situations=("another batch lives",),
    rows=3,
)
def prefill(scene: Scene) -> None:
    """Three batches start between each other's steps."""
    stage = scene.stage()
    batches: list[int] = []
    for prompt in stage.prompts[:3]:
        batches = [stage.decode(batch) for batch in batches]
        batches.append(stage.start(stage.request(prompt)))
    stage.decode(*batches, steps=3)


@clause(
    "isolation.filter",
    "Filter affects only the rows of its batch.",
    Level.L1,
    situations=("a batch is filtered beside others",),
    rows=4,
)
def filter_one(scene: Scene) -> None:
    """One batch loses a row, the other none."""
    stage = scene.stage()
    requests = [stage.request(prompt) for prompt in stage.prompts[:4]]
    first, second = stage.start(*requests[:2]), stage.start(*requests[2:])
    first = stage.filter(first, [requests[1].id])
    second = stage.decode(second, steps=2)
    stage.decode(first, second, steps=3)


@clause(
    "isolation.filter-empty",
    "A filter that keeps nothing clears its batch and no other.",
    Level.L1,
    situations=("a batch is filtered beside others",),
    rows=3,
)
def filter_empty(scene: Scene) -> None:
    """It returns EMPTY; the other batch goes on."""
    stage = scene.stage()
    first, second = (
        stage.start(stage.request(stage.prompts[0]), stage.request(stage.prompts[3])),
        stage.start(stage.request(stage.prompts[1])),
    )
    stage.filter(first, ())
    stage.decode(second, steps=3)


@clause(
    "isolation.ids-not-counts",
    "Filter compares ids, not counts: an unknown id is an UnknownRequest, however many are named.",
    Level.L1,
    rows=3,
)
def ids_not_counts(scene: Scene) -> None:
    """As many ids as rows, one of them wrong; the id of another batch's row; one id more than there are rows."""
    stage = scene.stage()
    first, second, other = (stage.request(prompt) for prompt in stage.prompts[:3])
    batch, apart = stage.start(first, second), stage.start(other)
    stage.refuse(UnknownRequest, Filter(batch, (first.id, 777_777)))
    stage.refuse(UnknownRequest, Filter(batch, (first.id, other.id)))
    stage.refuse(UnknownRequest, Filter(batch, (first.id, second.id, other.id)))
    stage.refuse(UnknownRequest, Filter(batch, (other.id,)))
    stage.decode(batch, apart, steps=3)


@clause(
    "isolation.which-row",
    "Filter keeps the rows it names, whatever their position in the batch.",
    Level.L1,
    situations=("a row leaves",),
    rows=3,
)
def which_row(scene: Scene) -> None:
    """The first, the middle and the last of three rows leave in turn; ids are named in any order."""
    for leaves in range(3):
        stage = scene.stage()
        requests = [stage.request(prompt, want=stage.wants) for prompt in stage.prompts[:3]]
        batch = stage.decode(stage.start(*requests))
        keep = [request.id for index, request in reversed(list(enumerate(requests))) if index != leaves]
        stage.decode(stage.filter(batch, keep), steps=4)
