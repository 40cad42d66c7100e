"""Wide random plays, which tell a mutant that no clause notices from one that never has any effect.

They use more rows, longer rows, higher block ids and more unusual combinations than any scenario. A play is drawn once, on the
sound session, with every outcome; then its calls are made on a mutant and the outcomes are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random

from tgi_conformance.baseline import Alone
from tgi_conformance.calls import Call, Clear, Decode, Encode, Filter, Prefill, Read, Ref, Trace, sentence
from tgi_conformance.generated.improvising import improvise
from tgi_conformance.golden import Golden, adapted_golden, default_model
from tgi_conformance.judge import TOLERANCE, RowJudge
from tgi_conformance.masks import ALTERNATING, BREAKING, FAILING, Masks
from tgi_conformance.mutants.base import Sound, opening
from tgi_conformance.oracle import Oracle, Part
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.session_driver import SessionDriver
from tgi_conformance.session_setup import Setup
from tgi_conformance.sessions import LentSession, SessionSpec
from tgi_conformance.target import Target, close, quiet
from tgi_core.backend import EMPTY, BackendError, Cleared, Handle, Row, Rows, Step, WarmupPlan
from tgi_core.backend.session import Session

_STRANGER = 987_654_321
_NEAR = TOLERANCE["float32"]


class _Mute(RowJudge):
    """Judges nothing; marks rows that must have failed, and notes late rows, whose results do not matter."""

    def __init__(self, alone: Alone, masks: str | None) -> None:
        super().__init__(alone, "float32", masks)
        self.late: dict[int, set[int]] = {}

    def step(self, step_id: int, parts: Sequence[Part], result: Rows) -> None:
        """Note late and failed rows without judging the results."""
        self.late[step_id] = {part.row.request.id for part in parts if not part.row.live}
        for part in parts:
            part.row.failed |= part.row.live and self._left(part) == 0


@dataclass(frozen=True, slots=True)
class Recorded:
    """A session's limits and setup; calls with their outcomes; and rows whose results come too late to matter, by call."""

    plan: WarmupPlan
    masks: str | None
    adapted: bool
    trace: Trace
    late: Mapping[Ref, set[int]]
    outcomes: tuple[object, ...] = ()


def _plan(draw: Random) -> WarmupPlan:
    """Draw wide, long or small limits."""
    size = draw.choice((1, 4, 16, 64))
    rows, length, tokens = draw.choice(
        ((80, 64, 1024), (80, 100, 1024), (4, 2200, 2300), (4, 700, 800), (12, 200, 300), (6, 64, 96), (6, 64, 96))
    )
    blocks = draw.choice((1100, rows * -(-length // size) + 40))
    return WarmupPlan(rows, length, tokens, num_blocks=max(blocks, rows * -(-length // size)), block_size=size)


def _sound() -> Target:
    return Target("sound", opening(Sound), Path(default_model("none")))


def _session(target: Target, masks: str | None, adapted: bool) -> tuple[Session, Masks | None]:
    source = Masks(target.vocab_size, masks) if masks else None
    adapters = Golden.load(adapted_golden("none")).adapters if adapted else ()
    return target.session(source, adapters), source


@cache
def recorded(number: int) -> Recorded:
    """Return a play by its number, recorded on the sound session."""
    draw = Random(f"play {number}")
    plan, masks = _plan(draw), draw.choice((None, ALTERNATING, ALTERNATING, FAILING, BREAKING))
    adapted, target = draw.random() < 0.5, _sound()
    session, source = _session(target, masks, adapted)
    capacity = session.warmup(plan, quiet)
    alone = Alone(target)
    judge, wanted = _Mute(alone, masks), SessionSpec(target.model, target.dtype, "", plan, masks)
    declared = session.capabilities()
    lent = LentSession(wanted, session, declared, declared, capacity, source)
    play = SessionDriver(
        Setup(plan, masks), Oracle(lent.capabilities, capacity), judge, Counter(), alone, True, target, wanted, lent
    )
    improvise(Stage(play, number), draw, 30 if plan.max_rows in (4, 80) else 80)
    close(session)
    late = {ref: judge.late.get(step.id, set()) for ref, step in play.steps.items()}
    found = Recorded(plan, masks, adapted, play.trace, late)
    return replace(found, outcomes=tuple(follow(target, found)))


def follow(target: Target, play: Recorded) -> list[object]:
    """Make a play's calls; return the promised limits, each call's outcome, and the counters at the end."""
    session, _ = _session(target, play.masks, play.adapted)
    try:
        outcomes: list[object] = [session.warmup(play.plan, quiet)]
        handles: dict[Ref, Handle] = {0: EMPTY}
        steps: dict[Ref, Step] = {}
        for ref, call in play.trace:
            outcomes.append(_outcome(session, ref, call, handles, steps, play.late))
        stats = session.stats()
        return [*outcomes, (stats.compiles, sum(share.num_bytes for share in stats.memory))]
    finally:
        close(session)


def _outcome(
    session: Session, ref: Ref, call: Call, handles: dict[Ref, Handle], steps: dict[Ref, Step], late: Mapping[Ref, set[int]]
) -> object:
    try:
        result = _issue(session, call, handles, steps)
    except BackendError as error:
        return type(error).__name__
    if isinstance(result, Rows) and isinstance(call, Read):
        return tuple(row for row in result.rows if row.request_id not in late.get(call.step, ()))
    if isinstance(result, Cleared):
        return result.count
    handle = result.handle if isinstance(result, Step) else result
    again = handle != EMPTY and handle in handles.values()
    if isinstance(result, Step):
        again |= result.id in {step.id for step in steps.values()}
        steps[ref] = result
    if isinstance(handle, Handle):
        handles[ref] = handle
    return handle == EMPTY, again


def _issue(session: Session, call: Call, handles: Mapping[Ref, Handle], steps: Mapping[Ref, Step]) -> object:
    def handle(ref: Ref) -> Handle:
        return handles.get(ref, Handle(_STRANGER))

    match call:
        case Prefill():
            return session.prefill(call.batch, handle(call.cached), call.grants)
        case Decode():
            return session.decode(tuple(map(handle, call.batches)), call.grants)
        case Read():
            return session.rows(steps.get(call.step, Step(_STRANGER, Handle(_STRANGER))))
        case Encode():
            return session.encode(call.item)
        case Filter():
            return session.filter(handle(call.batch), call.keep)
        case Clear():
            return session.clear(None if call.batch is None else handle(call.batch))


def difference(target: Target, plays: int) -> str:
    """Return where a mutant first differs from the sound session in `plays` plays, or ""."""
    for number in range(plays):
        play = recorded(number)
        found = follow(target, play)
        for index, (mine, other) in enumerate(zip(found, play.outcomes, strict=True)):
            if not _same(mine, other):
                what = sentence(*play.trace[index - 1]) if 0 < index <= len(play.trace) else "the promise or the counters"
                return f"play {number} ({play.plan.max_rows} rows of {play.plan.max_row_tokens}): {what[:160]}"
    return ""


def _same(mine: object, other: object) -> bool:
    if isinstance(mine, tuple) and isinstance(other, tuple):
        return len(mine) == len(other) and all(map(_same, mine, other))
    if isinstance(mine, Row) and isinstance(other, Row):
        fault = (mine.fault.kind if mine.fault else None) == (other.fault.kind if other.fault else None)
        same = mine.request_id == other.request_id and mine.tokens == other.tokens and fault
        numbers = ((mine.logprobs, other.logprobs), (mine.prompt_logprobs, other.prompt_logprobs))
        tops = (
            tuple(tuple(item.logprob for item in top) for top in mine.top),
            tuple(tuple(item.logprob for item in top) for top in other.top),
        )
        return same and all(_same(*pair) for pair in (*numbers, tops))
    if isinstance(mine, float) and isinstance(other, float):
        return mine == other or abs(mine - other) <= _NEAR
    return mine == other
