"""Drives a session with a speculator, and remembers what it proposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.engine.tiny_models import PROMPTS, Schedule
from tgi_core.backend import Capabilities, Grant, Row, WarmupPlan

PLAN = WarmupPlan(max_rows=4, max_row_tokens=96, draft=3)


class Observed(Schedule):
    """Remembers the rows of the last step."""

    rows: dict[int, Row]

    def step(self, *requests: Any, grants: tuple[Grant, ...] = ()) -> None:
        """As `Schedule.step`."""
        step = self.session.prefill(requests, self.handle, grants) if requests else self.session.decode((self.handle,), grants)
        self.handle = step.handle
        self.rows = {row.request_id: row for row in self.session.rows(step).rows}
        for row in self.rows.values():
            assert row.fault is None
            self.tokens[row.request_id] += row.tokens


def said(capabilities: Capabilities) -> tuple[str, str]:
    """What a session says of proposals, and why."""
    return next((kernel.name, kernel.reason) for kernel in capabilities.kernels if kernel.part == "proposals")


def turns(run: Observed, check: Callable[[], None]) -> None:
    """A prompt in chunks, another that joins, and steps with the proposals as drafts, all, one or none of them."""
    run.step(run.request(1, PROMPTS[0], 4))
    assert run.rows[1].proposed == ()
    run.step(run.request(2, PROMPTS[1], len(PROMPTS[1])), grants=(Grant(1, 5),))
    for count in (3, 0, 1, 3):
        check()
        drafts = {id: row.proposed[:count] for id, row in run.rows.items()}
        run.step(grants=tuple(Grant(id, 1 + len(tokens), drafts=tokens) for id, tokens in drafts.items()))
    check()


def counted(run: Observed) -> list[int]:
    """The tokens of a row of a model that counts by twos, whose speculator knows that: each of five drafts is kept, twice."""
    run.step(run.request(1, (7, 30, 4, 20), 4))
    for _ in range(2):
        proposed = run.rows[1].proposed
        assert len(proposed) == 5
        run.step(grants=(Grant(1, 6, drafts=proposed),))
        assert len(run.rows[1].tokens) == 6
    return run.tokens[1]
