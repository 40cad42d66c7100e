"""Drafts never cost more than a little, and pay where they are right: in virtual time, on a device whose steps take longer for each."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.scheduler.device import Device, device, request
from tgi_core.backend import WarmupPlan
from tgi_core.backend.batch_tracker import RowState
from tgi_core.backend.reference import PROPOSALS, ReferenceSession
from tgi_core.tokenizer import Tokenizer

STEP_S, TOKEN_S = 0.008, 0.001
LEARNING, NEW = 30, 200
"""Tokens of an answer."""


class GuessingSession(ReferenceSession):
    """Guesses each token rightly at the given rate; its steps take a time for each of their tokens, and for each row that guesses, on top
    of a constant."""

    rate = guess_s = 0.0
    token_s = TOKEN_S
    now = 0.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, on_step=self._computed, **options)
        self._chance = random.Random(0)

    def _computed(self, work: tuple[Any, ...]) -> None:
        type(self).now += STEP_S + self.token_s * sum(item.take for item in work)

    def _propose(self, row: RowState, count: int) -> tuple[int, ...]:
        type(self).now += self.guess_s
        coming = super()._propose(row, count)
        return tuple(token if self._chance.random() < self.rate else (token + 1) % self._vocab_size for token in coming)


def speed(tokenizer: Tokenizer, patch: pytest.MonkeyPatch, rows: int, draft: int, **given: float) -> float:
    """Tokens per virtual second of `rows` rows until one of them ends, after answers that the scheduler learns from; the fields `given`
    are those of the session."""
    kind = type("Session", (GuessingSession,), given)
    patch.setattr("tests.scheduler.device.ReferenceSession", kind)
    plan = WarmupPlan(max_rows=rows, max_row_tokens=512, num_blocks=64 * rows, block_size=16, draft=draft)
    one: Device = device(tokenizer, plan, clock=lambda: kind.now, asynchronous=False, proposals=PROPOSALS)  # type: ignore[attr-defined]
    start, before = 0.0, 0
    for new in (LEARNING, NEW):
        one.run()
        start, before = kind.now, sum(map(len, one.tokens.values()))  # type: ignore[attr-defined]
        for number in range(rows):
            one.scheduler.add(request(tuple(range(number, number + 5)), new))
    while len(one.ended) == rows:
        one.turn()
    return float((sum(map(len, one.tokens.values())) - before) / (kind.now - start))  # type: ignore[attr-defined]


@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize("token_s", [TOKEN_S / 10, TOKEN_S, 8 * TOKEN_S])
def test_wrong_drafts_cost_little(demo_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, rows: int, token_s: float) -> None:
    """At most a fiftieth of the speed, whatever a token adds to a step: rows whose drafts fail get some seldom."""
    plain, drafting = (speed(demo_tokenizer, monkeypatch, rows, draft, token_s=token_s) for draft in (0, 4))
    assert drafting / plain >= 0.98


@pytest.mark.parametrize(
    ("rows", "token_s", "rate", "gain"),
    [
        (1, TOKEN_S, 0.3, 1.05),
        (1, TOKEN_S, 0.6, 1.5),
        (1, TOKEN_S, 0.9, 2.8),
        (1, TOKEN_S / 10, 0.3, 1.25),
        (4, TOKEN_S / 10, 0.3, 1.15),
        (4, TOKEN_S, 0.6, 1.1),
    ],
)
def test_drafts_that_are_often_right_pay(
    demo_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, rows: int, token_s: float, rate: float, gain: float
) -> None:
    """The more often, and the less a token adds to a step, the more."""
    plain, drafting = (speed(demo_tokenizer, monkeypatch, rows, draft, rate=rate, token_s=token_s) for draft in (0, 4))
    assert drafting / plain >= gain


@pytest.mark.parametrize(("rate", "gain"), [(0.0, 0.98), (0.9, 1.6)])
def test_a_speculator_that_takes_its_time(
    demo_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, rate: float, gain: float
) -> None:
    """Of two rows whose guesses take as long as a fifth of a step each, it is asked as long as they pay."""
    plain, drafting = (speed(demo_tokenizer, monkeypatch, 2, draft, rate=rate, guess_s=0.002) for draft in (0, 4))
    assert drafting / plain >= gain
