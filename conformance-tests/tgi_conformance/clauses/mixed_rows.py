"""Rows of every kind where other clauses use plain ones: each block size, the last position, and the memory counters."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tgi_conformance.calls import Decode, Filter
from tgi_conformance.clause import clause
from tgi_conformance.clauses.feature_combinations import Company, Spec, company
from tgi_conformance.clauses.random_features import drawn_row
from tgi_conformance.clauses.traffic import come_and_go
from tgi_conformance.scenario import Scene
from tgi_conformance.target import LONG_ROW_TOKENS, MIXED_ROW_TOKENS, WIDE_ROWS, mixed_plan, plan_of
from tgi_conformance.verdict import Level, NotReached, Violation
from tgi_core.backend import SAMPLING, CapacityExceeded, SamplingStage, UnknownBatch, WarmupPlan

_PENALTIES = [spec for spec in SAMPLING if spec.stage is SamplingStage.PENALTY]
_COUNTED = 20
"""Tokens that penalties count: about half of a small vocabulary, since a penalty on all tokens changes nothing."""


@clause(
    "growth.block-sizes",
    "With every declared block size, rows of every kind generate the tokens they generate alone.",
    Level.L2,
    rows=4,
)
def block_sizes(scene: Scene) -> None:
    """The six smallest, except the size that the other clauses use, if there are others; if none are declared, whole rows."""
    usual = mixed_plan(scene.declared[0].block_sizes).block_size
    others = {*scene.declared[0].block_sizes} - {usual}
    sizes = sorted(others or scene.declared[0].block_sizes)[:6]
    for size in sizes or (None,):
        here = _company(scene, size)
        here.run(here.everyone(), steps=1)
        come_and_go(scene, here, 1 / max(2, len(sizes)))


@clause(
    "growth.last-position",
    "Rows of every kind generate the tokens they generate alone up to the last position of the longest row.",
    Level.L2,
)
def last_position(scene: Scene) -> None:
    """Each prompt leaves room for two more tokens, and both are generated; half of the rows had generated most of theirs.

    At the end the rows are named by verbs that are refused, and leave in two parts.
    """
    here = company(scene)
    stage = here.stage
    length = stage.capacity.max_row_tokens - 2
    if not 5 <= length <= min(512, stage.capacity.max_step_tokens):
        raise NotReached(f"rows of {length + 2} tokens cannot start in one step and end soon")
    specs = [replace(spec, chunk=0) for spec in here.everyone() if not spec.shares]
    specs += [replace(spec, made=length // 2, masked=False) for spec in specs[::-1]]
    draw = Random(scene.seed)
    specs += [replace(drawn_row(here, draw), chunk=0, shares=False) for _ in range(16)]
    for group in here.groups(specs):
        used = stage.decode(*(stage.start(here.request(spec, length)) for spec in group))
        rows = [row.request.id for row in stage.play.oracle.batches[used]]
        batch = stage.decode(used)
        stage.refuse(UnknownBatch, Decode((used,)))
        stage.refuse(UnknownBatch, Filter(used, tuple(rows[:1])))
        stage.refuse(CapacityExceeded, Decode((batch,)))
        batch = stage.filter(batch, rows[1::2] or rows)
        stage.clear(batch)
    here.check_formula()


@clause(
    "leaks.everyone",
    "Memory and the number of compiled shapes do not grow, whatever kinds of rows come and go.",
    Level.L3,
    rows=4,
)
def counters(scene: Scene) -> None:
    """Run the same rows of all kinds three times, with the smallest and the largest blocks.

    Only the first run may take memory for good, and none may compile.
    """
    sizes = sorted(scene.declared[0].block_sizes)
    for size in {sizes[0], sizes[-1]} if sizes else {None}:
        here = _company(scene, size)
        compiled, kinds = here.stage.play.session.stats().compiles, here.everyone()
        held = [_after(here, kinds) for _ in range(3)]
        if held[2] > held[0]:
            raise Violation(
                "leak",
                f"stats reports {held[0]} bytes after rows of every kind and {held[2]} after two more rounds of the same rows",
            )
        if (after := here.stage.play.session.stats().compiles) > compiled:
            raise Violation("compile", f"{after - compiled} shapes were compiled during traffic")


def _after(here: Company, kinds: list[Spec]) -> int:
    here.repeat()
    here.run(kinds, steps=1)
    come_and_go(here.scene, here, 0.25)
    return sum(share.num_bytes for share in here.stage.play.session.stats().memory)


def _company(scene: Scene, size: int | None) -> Company:
    """Open a session with blocks of `size` tokens; with adapters, which may mean another model, for every other size."""
    place = 0 if size is None else sorted(scene.declared[0].block_sizes).index(size)
    return company(scene, plan=_plan(size), adapted=(place + scene.seed) % 2 == 0)


def _plan(size: int | None) -> WarmupPlan:
    """Return a plan for rows of every kind in blocks of `size` tokens; None for blocks that hold a whole row."""
    return replace(plan_of(() if size is None else (size,), WIDE_ROWS, MIXED_ROW_TOKENS, 640), block_size=size)


@clause(
    "growth.long-company", "Rows of every kind generate the tokens they generate alone after long prompts too.", Level.L2, rows=4
)
def long_company(scene: Scene) -> None:
    """Prompts that end near powers of two, as far as the promised limits go. They start one by one and, in turn, together, and the
    last of those that start together go first. In the end a long prompt starts right after everything was cleared."""
    plan = plan_of(scene.declared[0].block_sizes, 6, LONG_ROW_TOKENS, LONG_ROW_TOKENS)
    here = company(scene, plan=plan, adapted=scene.seed % 2 == 0)
    room = min(here.stage.capacity.max_row_tokens, here.stage.capacity.max_step_tokens) - 3
    if room < 5:
        raise NotReached(f"rows of {room + 3} tokens cannot start in one step")
    lengths = [min(length, room) for length in (255, 127, 300, 510, 256, 1023, 130, 2046)]
    specs = [replace(spec, chunk=0) for spec in here.everyone() if not spec.shares]
    for first in range(0, len(specs), 4):
        pairs = zip(specs[first : first + 4], lengths[first % 8 :], strict=False)
        requests = [here.request(spec, length) for spec, length in pairs]
        batches = here.started(requests)[::-1] if first // 8 % 2 else [*map(here.stage.start, requests)]
        here.stage.clear(here.stage.decode(*batches, steps=2))
    _penalized(here, room)
    here.stage.clear(None)
    last = here.started([here.request(Spec(), 3), here.request(Spec(want=here.full), max(1, min(2048, room - 3)))])
    here.stage.clear(here.stage.decode(*last))
    here.check_formula()
    come_and_go(scene, here, 0.5)


def _penalized(here: Company, room: int) -> None:
    """Run rows whose penalties count their last tokens: the positions that the formula judges are on both sides of a power of two."""
    found = [
        spec for specs in here.features().values() for spec in specs if any(field.is_used(spec.sampling) for field in _PENALTIES)
    ]
    size = max(1, min(here.stage.capacity.max_rows, here.stage.capacity.max_prefill_rows, len(found)))
    for length in (32, 64, 128, 256):
        for first in range(0, len(found), size):
            group = [replace(spec, made=_COUNTED, want=here.full) for spec in found[first : first + size]]
            if length * len(group) <= room:
                batch = here.stage.start(*(here.request(spec, length) for spec in group))
                here.stage.clear(here.stage.decode(batch))
