"""A hypothesis state machine over the verbs; the oracle judges each call as it is made."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky, HypothesisWarning
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tgi_conformance.calls import NOTHING, STRANGER, Call, Clear, Decode, Filter, Prefill, Ref
from tgi_conformance.clauses.mates import ways
from tgi_conformance.oracle import OracleRow
from tgi_conformance.scenario import Scene
from tgi_conformance.verdict import Violation
from tgi_core.backend import Feature, Grant, Mixing, Request, UnknownBatch

EXAMPLES, STEPS = 45, 24

_some = st.integers(0, 29)


class Verbs(RuleBasedStateMachine):
    """Live traffic: rows start, join, decode, pause and leave, interspersed with calls that must be refused."""

    scene: Scene

    def __init__(self) -> None:
        super().__init__()
        self.stage = self.scene.stage()
        self.oracle = self.stage.play.oracle
        self.used: list[Ref] = [STRANGER]
        self.ways = ways(self.stage)
        size = min(self.oracle.capacity.groups[0].block_size, 32)  # prompts that are about to need another block
        self.prompts = (tuple(range(1, size + 1)), *self.stage.prompts, tuple(range(2, size + 1)) or (2,))

    def teardown(self) -> None:
        """Keep only a failed session for the report, since there are many."""
        play = self.stage.play
        self.scene.leave()
        if not play.failed and play in self.scene.plays:
            self.scene.plays.remove(play)

    @initialize(first=_some, second=_some, count=st.integers(1, 2))
    def begin(self, first: int, second: int, count: int) -> None:
        """Start two batches; otherwise other batches are rarely alive when something happens."""
        for number in (first, second):
            if self.room() > 0:
                self.make_way()
                numbers = range(number, number + min(count, self.room()))
                long = number + self.oracle.capacity.max_prefill_rows
                self.stage.launch(*(self.new(item if item > number else 0, 0, short=item >= long) for item in numbers))

    # state

    @property
    def batches(self) -> list[Ref]:
        """Live batches, oldest first."""
        return sorted(self.oracle.batches)

    def pick(self, number: int) -> Ref:
        """Choose a live batch."""
        return self.batches[number % len(self.batches)]

    def room(self) -> int:
        """Return how many more rows may start."""
        return self.oracle.capacity.max_rows - len(self.oracle.rows)

    def new(self, number: int, chunk: int, *, short: bool = False) -> Request:
        """Build a request by number; a `short` one has a one-token prompt."""
        prompt = self.prompts[number % len(self.prompts)][: 1 if short else None]
        take = None
        if chunk and len(prompt) > 1 and Feature.CHUNKED_PREFILL in self.oracle.capabilities.features:
            take = 1 + chunk % (len(prompt) - 1)
        want = self.stage.wants if number % 3 else self.stage.request(()).want
        return self.stage.request(prompt, self.ways[(number // 7) % len(self.ways)], take, want=want)

    def make_way(self, *batches: Ref) -> tuple[Ref, ...]:
        """Read steps until another can be launched, and drop rows that have reached their longest length."""
        while len(self.oracle.steps) >= self.oracle.capacity.in_flight:
            self.stage.read(min(self.oracle.steps))
        kept = []
        for batch in batches:
            rows = self.oracle.batches[batch]
            short = [row.request.id for row in rows if row.done < self.oracle.capacity.max_row_tokens - 1]
            kept.append(self.filter_away(batch, short) if len(short) < len(rows) else batch)
        return tuple(batch for batch in kept if batch)

    def filter_away(self, batch: Ref, keep: list[int]) -> Ref:
        """Filter a batch, and remember its dead handle."""
        self.used.append(batch)
        return self.stage.filter(batch, keep)

    def grants(self, rows: list[OracleRow], numbers: int) -> list[Grant]:
        """Grant prompts their chunks and rows the blocks they need, and now and then pause a row."""
        grants = []
        long = 0
        for index, row in enumerate(rows):
            if row.owed:
                take = 1 + numbers % row.owed if long < self.oracle.capacity.max_prefill_rows else 1
                long += take > 1
                grants.append(self.stage.grant(row, take))
            elif numbers % 4 == 3 and index == numbers % len(rows):
                grants.append(Grant(row.request.id, 0))
            else:
                grant = self.stage.grant(row)
                grants += [grant] if any(grant.blocks) or numbers % 2 else []
        return grants

    # rules

    @precondition(lambda self: self.room() > 0)
    @rule(first=_some, count=st.integers(1, 3), chunk=st.integers(0, 4), joins=st.integers(0, 2), numbers=_some)
    def start(self, first: int, count: int, chunk: int, joins: int, numbers: int) -> None:
        """Start new rows, alone or in a live batch."""
        mixes = self.oracle.capabilities.mixing is not Mixing.NONE
        beside = self.make_way(self.pick(joins)) if joins and self.batches and mixes else self.make_way()
        cached = beside[0] if beside else NOTHING
        grants = self.grants(self.oracle.batches[cached], numbers) if cached else []
        long = self.oracle.capacity.max_prefill_rows - sum(grant.take > 1 for grant in grants)
        requests = [self.new(first + 5 * index, chunk, short=index >= long) for index in range(min(count, self.room()))]
        if cached:
            self.used.append(cached)
        self.stage.launch(*requests, beside=cached, grants=grants)

    @precondition(lambda self: self.batches)
    @rule(first=_some, count=st.integers(1, 3), numbers=_some, order=st.booleans())
    def decode(self, first: int, count: int, numbers: int, order: bool) -> None:
        """Decode one batch, or merge several."""
        start = first % len(self.batches)
        chosen = (self.batches[start:] + self.batches[:start])[:count]
        batches = self.make_way(*(chosen if order else reversed(chosen)))
        if batches:
            rows = [row for batch in batches for row in self.oracle.batches[batch]]
            grants = self.grants(rows, numbers)
            self.used += batches
            self.stage.go_on(*batches, grants=grants)
            if numbers % 3 == 2:  # a late call with a handle that was just used
                self.stage.refuse(UnknownBatch, Decode(batches[:1]) if numbers % 2 else Filter(batches[-1], ()))

    @precondition(lambda self: self.oracle.steps)
    @rule()
    def read(self) -> None:
        """Read the oldest unread step."""
        self.stage.read(min(self.oracle.steps))

    @precondition(lambda self: self.batches)
    @rule(batch=_some, mask=st.integers(0, 63))
    def filter(self, batch: int, mask: int) -> None:
        """Keep some rows, in any order."""
        chosen = self.pick(batch)
        keep = [row.request.id for index, row in enumerate(self.oracle.batches[chosen]) if mask >> index & 1]
        self.filter_away(chosen, keep[::-1] if mask % 3 == 0 else keep)

    @precondition(lambda self: len(self.batches) > 1)
    @rule(batch=_some, everything=st.integers(0, 7))
    def clear(self, batch: int, everything: int) -> None:
        """Clear one batch, or rarely everything, because that would prevent deep states."""
        self.used += self.batches if everything == 7 else [self.pick(batch)]
        self.stage.clear(None if everything == 7 else self.pick(batch))

    @rule(number=_some, kind=st.integers(0, 8))
    def refuse(self, number: int, kind: int) -> None:
        """Call a verb that the oracle says must be refused."""
        call = self.wrong(number, kind)
        if not self.oracle.expect(call).errors:
            return
        self.stage.play.call(call)

    def wrong(self, number: int, kind: int) -> Call:
        """Build a call with one mistake."""
        dead, batches = self.used[-1 - number % min(4, len(self.used))], self.batches
        if kind == 0:
            return Decode((dead, *batches[:1]))
        if kind == 1:
            return Filter(dead, ())
        if kind == 2:
            return Clear(dead)
        if not batches:
            return Prefill(())
        batch = self.pick(number)
        row = self.oracle.batches[batch][0]
        wrong: dict[int, Call] = {
            3: Decode((batch, batch)),
            4: Filter(batch, (row.request.id, 555_555)),
            5: Decode((batch,), (Grant(555_555, 1),)),
            6: Decode((batch,), (Grant(row.request.id, max(1, row.owed) + 1),)),
            7: Decode((batch,), (Grant(row.request.id, 0), Grant(row.request.id, 0))),
            8: Prefill((row.request,)),
        }
        return wrong[kind]


def explore(scene: Scene, seed: int) -> None:
    """Run the machine with a seed. Raises Violation with the shortest sequence found, whose session becomes the scene's culprit."""
    machine: Any = type("Machine", (Verbs,), {"scene": scene})
    machine = hypothesis.seed(seed)(machine)
    chosen = settings(
        max_examples=max(5, int(EXAMPLES * scene.effort)),
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink) if scene.shorten else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    try:
        with contextlib.redirect_stdout(None), warnings.catch_warnings():
            warnings.simplefilter("ignore", HypothesisWarning)
            run_state_machine_as_test(machine, settings=chosen)
    except Violation as violation:
        last = next(play for play in reversed(scene.plays) if play.failed)
        scene.plays[:] = [last]
        raise violation
    except Flaky as error:
        raise Violation("flaky", f"the same calls had different results: {str(error).splitlines()[0]}") from error
