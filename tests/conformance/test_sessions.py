"""Sessions are few: a device may take minutes to open one, and may allow one at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import ClassVar

import pytest
from tgi_conformance.baseline import Alone
from tgi_conformance.clause_run import run_clause
from tgi_conformance.clauses import CLAUSES
from tgi_conformance.mutants import TWINS
from tgi_conformance.mutants.base import Sound, opening
from tgi_conformance.target import Target
from tgi_conformance.verdict import Level, Verdict

from tgi_core.backend import Cleared, Closed, Handle, OpenOptions, OutOfMemory, Rows, Step, hookimpl

BY_ID = {clause.id: clause for clause in CLAUSES}


def counted(target: Target, counts: Counter[str]) -> Target:
    """A target whose openings are counted."""

    def open_session(options: OpenOptions) -> object:
        counts["opened"] += 1
        return target.open(options)

    return replace(target, open=open_session)


@pytest.mark.parametrize(("name", "most"), [("random-handles", 53), ("one-session", 108)])
def test_few_are_opened(name: str, most: int) -> None:
    """By all clauses of L1 to L3 together: with five more in `leaks.reopen`, at five seconds each they take under five minutes, or ten
    where one is open at a time."""
    counts: Counter[str] = Counter()
    target = counted(TWINS[name].target(), counts)
    alone = Alone(target)
    for clause in CLAUSES:
        if clause.level in (Level.L1, Level.L2, Level.L3) and clause.id != "leaks.reopen":  # opens as many as there is time for
            result = run_clause(clause, target, alone, effort=0.1 if clause.topic != "machine" else 1.0)
            assert result.verdict in (Verdict.PASS, Verdict.UNSUPPORTED), f"{clause.id}: {result.message}"
    alone.close()
    assert counts["opened"] <= most, counts


def test_nothing_stays_open() -> None:
    """What the suite has opened it closes, however a clause ends."""
    target = TWINS["one-session"].target()
    alone = Alone(target)
    for id in ("mates.merge", "open.invalid-model", "faults.lost", "parity.greedy"):
        assert run_clause(BY_ID[id], target, alone).verdict is Verdict.PASS
    alone.close()
    assert run_clause(BY_ID["clear.none"], target, Alone(target)).verdict is Verdict.PASS


def test_a_closed_session_is_not_used_again() -> None:
    """Clauses that close a session that others had used leave it to nobody."""
    counts: Counter[str] = Counter()
    target = counted(TWINS["random-handles"].target(), counts)
    alone = Alone(target)
    for id in ("open.first-step", "clear.none", "faults.reopen", "faults.after-close", "open.first-step", "clear.none"):
        before = counts["opened"]
        assert run_clause(BY_ID[id], target, alone).verdict is Verdict.PASS
    alone.close()
    assert counts["opened"] == before + 1, "the plan's only session was closed"


def test_a_refused_group_is_asked_for_once() -> None:
    """Clauses that need ranks find them refused; the refusal is tried by the first of them."""
    counts: Counter[str] = Counter()
    target = counted(TWINS["random-handles"].target(), counts)
    alone = Alone(target)
    assert run_clause(BY_ID["ranks.refusal"], target, alone).verdict is Verdict.UNSUPPORTED
    opened = counts["opened"]
    for id in ("ranks.tokens", "ranks.verbs"):
        assert run_clause(BY_ID[id], target, alone).verdict is Verdict.UNSUPPORTED
    alone.close()
    assert counts["opened"] == opened


class Cramped(Sound):
    """Two sessions at a time have memory."""

    open_now: ClassVar[Counter[str]] = Counter()

    @hookimpl
    def close(self) -> Closed:
        """Room again."""
        self.open_now["sessions"] -= self._slots != []
        return super().close()


def test_memory_for_a_few() -> None:
    """A device whose memory holds two sessions is asked for no third one."""

    def open_session(options: OpenOptions) -> object:
        if Cramped.open_now["sessions"] >= 2:
            raise OutOfMemory("the weights find no room")
        Cramped.open_now["sessions"] += 1
        return opening(Cramped)(options)

    target = replace(TWINS["random-handles"].target(), open=open_session)
    alone = Alone(target)
    for id in ("mates.merge", "parity.greedy", "masks.allowed", "lora.tokens", "open.block-sizes"):
        result = run_clause(BY_ID[id], target, alone)
        assert result.verdict is Verdict.PASS, result.message
    alone.close()
    assert Cramped.open_now["sessions"] == 0


class Watched(Sound):
    """Notes that a step is under way while rows leave."""

    leaving: ClassVar[bool] = False

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """From here."""
        Watched.leaving = True
        return super().filter(batch, keep)

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """To here."""
        Watched.leaving = False
        return super().rows(step)


def test_time_to_open_is_not_held_against_a_verb() -> None:
    """What a row makes alone is known before a step is held back: a session that takes seconds to open would let go of it."""
    opened_late = []

    def open_session(options: OpenOptions) -> object:
        opened_late.append(Watched.leaving)
        return opening(Watched)(options)

    target = replace(TWINS["random-handles"].target(), open=open_session)
    alone = Alone(target)
    result = run_clause(BY_ID["order.never-waits"], target, alone)
    alone.close()
    assert result.verdict is Verdict.PASS and not any(opened_late)


class Forgetful(Sound):
    """Rows of a session that was cleared twice come in the wrong order."""

    clears = 0

    @hookimpl
    def clear(self, batch: Handle | None) -> Cleared:
        """One more."""
        self.clears += batch is None
        return super().clear(batch)

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Last first, later."""
        found = super().rows(step)
        return replace(found, rows=found.rows[::-1]) if self.clears > 1 else found


def test_what_earlier_traffic_has_broken() -> None:
    """A law that only a used session breaks is broken, and the message says when."""
    target = replace(TWINS["random-handles"].target(), open=opening(Forgetful))
    alone = Alone(target)
    results = [run_clause(BY_ID["order.batch"], target, alone, shorten=False) for _ in range(3)]
    assert [result.verdict for result in results] == [Verdict.PASS, Verdict.PASS, Verdict.FAIL]
    assert "rows must come in the order" in results[2].message
    assert "a session that other clauses had used" in results[2].message
