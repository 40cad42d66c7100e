"""Rows in a session with a history: whatever has happened, and however often, rows of every kind make the tokens they make alone.

Each clause repeats one event. Right after each occurrence rows start, decode and leave; their kinds vary from one time to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tgi_conformance.calls import Decode, Filter, Ref
from tgi_conformance.clause import clause
from tgi_conformance.clauses.feature_combinations import Company, Spec, company
from tgi_conformance.clauses.traffic import come_and_go
from tgi_conformance.masks import BREAKING, OWN
from tgi_conformance.scenario import Scene
from tgi_conformance.verdict import Level
from tgi_core.backend import Grant, Request, UnknownBatch

TIMES = 9
"""How often an event is repeated."""

Event = Callable[[Company, list[Spec]], Ref]
"""Makes an event happen, and returns one batch with rows of the given kinds: new ones, or those involved in the event."""


def _started(here: Company, specs: list[Spec]) -> Ref:
    batches = here.start(specs)
    return here.stage.decode(*batches) if len(batches) > 1 else batches[0]


def _plain(here: Company, count: int) -> Ref:
    """Start plain rows that only serve the event."""
    return here.stage.start(*(here.stage.request(here.stage.prompts[index % 6][:4]) for index in range(count)))


def _merge(here: Company, specs: list[Spec]) -> Ref:
    half = len(specs) // 2
    return here.stage.decode(_started(here, specs[half:]), _started(here, specs[:half]))


def _join(here: Company, specs: list[Spec]) -> Ref:
    batch = _started(here, specs[1:])
    request = here.request(replace(specs[0], shares=False))
    return here.finished(here.stage.start(request, beside=batch), {request.id: request.take})


def _removal(here: Company, specs: list[Spec]) -> Ref:
    gone, batch = _plain(here, 2), _started(here, specs)
    here.stage.filter(gone, ())
    rows = [row.request.id for row in here.stage.play.oracle.batches[batch]]
    return here.stage.filter(batch, rows[1:])


def _clear(here: Company, specs: list[Spec]) -> Ref:
    batch = _started(here, specs)
    here.stage.clear(_plain(here, 2))
    return batch


def _clear_all(here: Company, specs: list[Spec]) -> Ref:
    _plain(here, 2)
    here.stage.clear(None)
    return _started(here, specs)


def _refusal(here: Company, specs: list[Spec]) -> Ref:
    batch, dead = _started(here, specs), _plain(here, 1)
    here.stage.clear(dead)
    here.stage.refuse(UnknownBatch, Decode((batch, dead)))
    here.stage.refuse(UnknownBatch, Filter(dead, ()))
    return batch


def _preemption(here: Company, specs: list[Spec]) -> Ref:
    """Remove the rows of a batch and continue them as new requests from their tokens."""
    stage, batch = here.stage, _started(here, specs)
    rows = [row.request for row in stage.play.oracle.batches[batch]]
    stage.filter(batch, ())
    batches = []
    for request in rows:
        if not request.masked:  # a mask source may only receive tokens that it allowed itself
            tokens = (*request.tokens, *stage.play.tokens(request.id))
            fields: dict[str, Any] = {"adapter": request.adapter, "prompt_len": request.prompt_len}
            again = stage.request(tokens[: stage.capacity.max_row_tokens - 6], request.sampling, want=request.want, **fields)
            batches.append(stage.start(again))
    return stage.decode(*batches) if batches else _started(here, [Spec()])


def _pause(here: Company, specs: list[Spec]) -> Ref:
    """Every other row sits out."""
    batch = _started(here, specs)
    rows = here.stage.play.oracle.batches[batch]
    return here.stage.decode(
        batch, grants=[Grant(row.request.id, 0) if index % 2 else here.stage.grant(row) for index, row in enumerate(rows)]
    )


def _ahead(here: Company, specs: list[Spec]) -> Ref:
    """Launch as many steps as may be unread."""
    stage, batch = here.stage, _started(here, specs)
    steps = [batch := stage.go_on(batch) for _ in range(stage.capacity.in_flight)]
    for step in steps:
        stage.read(step)
    return batch


def _failure(here: Company, specs: list[Spec]) -> Ref:
    """A step of other rows fails; some rows start before, the others right after it."""
    stage, batch = here.stage, _started(here, specs[1::2])
    doomed: list[Request] = [stage.doomed(stage.prompts[0]), stage.request(stage.prompts[1])]
    stage.read(stage.go_on(stage.decode(stage.start(*doomed))))
    return stage.decode(_started(here, specs[::2]), batch)


def _again_and_again(scene: Scene, event: Event, times: int, masks: str = OWN) -> None:
    here = company(scene, masks, adapted=event not in (_merge, _join, _removal, _refusal, _ahead))
    kinds = here.everyone()
    room = max(2, min(5, here.stage.capacity.max_rows - 2, *(len(group) for group in here.groups(kinds))))
    for number in range(times):
        chosen = [kinds[(number * room + index) % len(kinds)] for index in range(room)]
        batch = event(here, chosen)
        batch = here.stage.decode(batch, steps=2)
        here.stage.clear(batch) if event is _clear else here.stage.filter(batch, ())
    here.repeat()  # the same requests in each of these clauses, for which one run alone is enough
    here.run(kinds)
    if event is _failure:
        come_and_go(scene, here, 0.5)


def _about(id: str, sentence: str, event: Event, level: Level = Level.L2, *needs: str, times: int = TIMES, **more: str) -> None:
    def check(scene: Scene) -> None:
        """Repeat the event, then run rows of all kinds."""
        _again_and_again(scene, event, times, **more)

    clause(id, f"{sentence}, rows of every kind make the tokens they make alone.", level, needs=needs, rows=4)(check)


_about("mates.after-merges", "After many merges", _merge)
_about("mixing.after-joins", "After many joins", _join, Level.L2, "mixing")
_about("drop.after-removals", "After many rows have left", _removal)
_about("clear.after-clears", "After many batches were cleared", _clear)
_about("clear.after-everything", "After everything was cleared repeatedly", _clear_all)
_about("refusal.after-refusals", "After many verbs were refused", _refusal)
_about("continue.after-preemptions", "After many rows were continued", _preemption)
_about("growth.after-pauses", "After many pauses", _pause)
_about("order.after-ahead", "After many steps were launched ahead", _ahead, Level.L2, "run_ahead")
_about("faults.after-failures", "After several steps failed", _failure, Level.L3, "masks", times=4, masks=BREAKING)
