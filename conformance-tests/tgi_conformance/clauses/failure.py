"""A verb that raises changes nothing."""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.calls import NOTHING, Call, Clear, Decode, Filter, Prefill
from tgi_conformance.clause import clause
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.verdict import Level
from tgi_core.backend import BackendError, Grant, InvalidRequest, UnknownBatch, UnknownRequest


def _refuse_all(stage: Stage, bad: list[tuple[type[BackendError], Call]]) -> None:
    for kind, call in bad:
        stage.refuse(kind, call)


@clause(
    "failure.decode",
    "A refused decode changes nothing: its batches and blocks are as before.",
    Level.L1,
    situations=("decode refused",),
    rows=2,
)
def decode(scene: Scene) -> None:
    """Every kind of wrong grant, each next to a valid one with a block; dead batches next to live ones."""
    stage = scene.stage()
    first, second = stage.request(stage.prompts[0], want=stage.wants), stage.request(stage.prompts[1], want=stage.wants)
    batch, apart = stage.start(first), stage.start(second)
    (spare,) = stage.spare_blocks(1)
    good = Grant(first.id, 1, ((spare,), *((),) * (len(first.blocks) - 1)))
    _refuse_all(
        stage,
        [
            (UnknownRequest, Decode((batch,), (good, Grant(555_555, 1)))),
            (UnknownRequest, Decode((batch,), (good, Grant(second.id, 1)))),
            (InvalidRequest, Decode((batch, apart), (good, Grant(second.id, 2)))),
            (InvalidRequest, Decode((batch, apart), (good, Grant(second.id, -1)))),
            (InvalidRequest, Decode((batch,), (good, good))),
            (InvalidRequest, Decode((batch, apart, apart), (good,))),
            (UnknownBatch, Decode((batch, apart, -1), (good,))),
        ],
    )
    stage.decode(batch, apart, steps=5)


@clause(
    "failure.prefill",
    "A refused prefill changes nothing: none of its requests is admitted, and the batch it names stays alive.",
    Level.L1,
    rows=3,
)
def prefill(scene: Scene) -> None:
    """A bad request after a good one; grants for unknown ids; afterwards both requests start under the same ids."""
    stage = scene.stage()
    old = stage.request(stage.prompts[0])
    batch = stage.start(old)
    good, bad = stage.request(stage.prompts[1]), stage.request(stage.prompts[2])
    vocab = stage.capabilities.vocab_size
    wrong = [
        replace(bad, tokens=(*bad.tokens[:-1], vocab)),
        replace(bad, tokens=(-1, *bad.tokens[1:])),
        replace(bad, take=len(bad.tokens) + 1),
        replace(bad, take=0),
        replace(bad, prompt_len=len(bad.tokens) + 1),
        replace(bad, cached=-1),
        replace(bad, id=old.id),
        replace(bad, id=good.id),
    ]
    _refuse_all(stage, [(InvalidRequest, Prefill((good, request))) for request in wrong])
    stage.refuse(InvalidRequest, Prefill(()))
    stage.refuse(UnknownRequest, Prefill((good,), NOTHING, (Grant(old.id, 1),)))
    stage.refuse(UnknownRequest, Prefill((good,), NOTHING, (Grant(555_555, 1),)))
    stage.decode(batch, stage.start(good, bad), steps=3)


@clause(
    "failure.join",
    "A refused prefill leaves the batch it would have joined alive and unchanged.",
    Level.L1,
    needs=("mixing",),
    rows=2,
)
def join(scene: Scene) -> None:
    """The handle is valid for the next verb."""
    stage = scene.stage()
    old = stage.request(stage.prompts[0], want=stage.wants)
    batch = stage.start(old)
    new = stage.request(stage.prompts[1])
    grant = stage.grant(stage.row(old.id))
    stage.refuse(InvalidRequest, Prefill((replace(new, take=9),), batch, (grant,)))
    stage.refuse(UnknownRequest, Prefill((new,), batch, (grant, Grant(555_555, 1))))
    stage.refuse(InvalidRequest, Prefill((new,), batch, (Grant(old.id, 3),)))
    stage.decode(stage.start(new, beside=batch), steps=4)


@clause(
    "failure.filter",
    "A refused filter or clear changes nothing.",
    Level.L1,
    situations=("filter refused", "clear refused"),
    rows=3,
)
def filter_refused(scene: Scene) -> None:
    """Unknown ids among those to keep, twice; an unknown batch; all rows go on."""
    stage = scene.stage()
    requests = [stage.request(prompt) for prompt in stage.prompts[:3]]
    batch = stage.start(*requests)
    for _ in range(2):
        stage.refuse(UnknownRequest, Filter(batch, (requests[0].id, 555_555)))
        stage.refuse(UnknownRequest, Filter(batch, (555_555,)))
    stage.refuse(UnknownBatch, Clear(-1))
    stage.decode(batch, steps=4)


@clause("failure.live-id", "A request whose id is already alive is an InvalidRequest.", Level.L1, rows=2)
def live_id(scene: Scene) -> None:
    """The same id twice in one prefill, and the id of a live row before and after it decodes."""
    stage = scene.stage()
    request, other = stage.request(stage.prompts[0]), stage.request(stage.prompts[1])
    stage.refuse(InvalidRequest, Prefill((request, request)))
    batch = stage.start(request)
    stage.refuse(InvalidRequest, Prefill((replace(other, id=request.id),)))
    batch = stage.decode(batch)
    stage.refuse(InvalidRequest, Prefill((replace(other, id=request.id),)))
    stage.decode(batch, stage.start(other))
