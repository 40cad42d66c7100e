"""What a backend proposes becomes drafts, as many as pay, and changes no token."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scheduler.checks import check_empty
from tests.scheduler.device import Device, alone, device, request
from tgi_core.backend import Mixing, WarmupPlan
from tgi_core.backend.batch_tracker import RowState
from tgi_core.backend.reference import PROPOSALS, ReferenceSession
from tgi_core.scheduler.row_drafts import DraftSource
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import Decode, Prefill

PLAN = WarmupPlan(max_row_tokens=256, num_blocks=64, block_size=4, draft=4)
PROMPT = (11, 45, 7, 300, 28)
LATELY = 40
"""Steps after which guesses that always fail are rarely drafted."""


def steps(one: Device) -> int:
    """How many steps were launched."""
    return sum(isinstance(turn.launch, Prefill | Decode) for turn in one.turns)


def drafted(one: Device) -> list[int]:
    """The number of drafts of a step, step by step."""
    launches = [turn.launch for turn in one.turns if isinstance(turn.launch, Prefill | Decode)]
    return [sum(len(grant.drafts) for grant in launch.grants) for launch in launches]


@pytest.mark.parametrize("mixing", [Mixing.EAGER, Mixing.NONE])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_fewer_steps_for_the_same_tokens(demo_tokenizer: Tokenizer, asynchronous: bool, mixing: Mixing) -> None:
    """A text that never repeats itself takes fewer steps than it has tokens, in lock step and one ahead; sampled rows beside it, for which
    the guesses are wrong, stay what they are."""
    wanted = [request(PROMPT, 40), request(PROMPT[::-1], 25, 3), request((5,), 33), request((9, 2), 12, 7)]
    one = device(demo_tokenizer, PLAN, asynchronous=asynchronous, mixing=mixing, proposals=PROPOSALS)
    keys = [one.scheduler.add(each) for each in wanted]
    one.run()
    for key, each in zip(keys, wanted, strict=True):
        assert one.tokens[key] == alone(demo_tokenizer, each)
    assert steps(one) < 30
    check_empty(one)


def test_a_single_text_takes_few_steps(demo_tokenizer: Tokenizer) -> None:
    """Right guesses are kept to the last, in steps of 5 tokens."""
    one = device(demo_tokenizer, PLAN, asynchronous=False, proposals=PROPOSALS)
    key = one.scheduler.add(request(PROMPT, 41))
    one.run()
    assert len(one.tokens[key]) == 41 and steps(one) <= 12


def test_no_speculator_no_drafts(demo_tokenizer: Tokenizer) -> None:
    """The same text without proposals has nothing to draft from."""
    one = device(demo_tokenizer, PLAN, asynchronous=False)
    one.scheduler.add(request(PROMPT, 41))
    one.run()
    assert not any(drafted(one)) and steps(one) == 41


class WrongSession(ReferenceSession):
    """Guesses that are always wrong; with `beyond`, tokens that do not exist among them."""

    beyond = False

    def _propose(self, row: RowState, count: int) -> tuple[int, ...]:
        wrong = tuple((token + 1) % self._vocab_size for token in super()._propose(row, count))
        return (*wrong[:2], -1, 10**6)[:count] if self.beyond else wrong


def opened(tokenizer: Tokenizer, kind: type[ReferenceSession], patch: pytest.MonkeyPatch) -> Device:
    """A device on another kind of session."""
    patch.setattr("tests.scheduler.device.ReferenceSession", kind)
    return device(tokenizer, PLAN, asynchronous=False, proposals=PROPOSALS)


def test_guesses_that_fail_are_drafted_less(demo_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a row accepts is measured; tokens stay the same."""
    wanted = request(PROMPT, 100)
    one = opened(demo_tokenizer, WrongSession, monkeypatch)
    key = one.scheduler.add(wanted)
    one.run()
    assert one.tokens[key] == alone(demo_tokenizer, wanted)
    counts = drafted(one)
    assert sum(counts[:LATELY]) > 0 and sum(counts[LATELY:]) < len(counts[LATELY:])


def test_a_speculator_that_fails_is_asked_seldom(demo_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows whose drafts fail are told to propose nothing, most of the time; one whose drafts are right is asked. No time passes, so that
    neither costs anything."""

    def asked(kind: type[ReferenceSession], lately: int) -> float:
        monkeypatch.setattr("tests.scheduler.device.ReferenceSession", kind)
        one = device(demo_tokenizer, PLAN, clock=lambda: 0.0, asynchronous=False, proposals=PROPOSALS)
        one.scheduler.add(request(PROMPT, 100))
        one.run()
        launches = [turn.launch for turn in one.turns if isinstance(turn.launch, Decode)][lately:]
        return sum(all(grant.propose for grant in launch.grants) for launch in launches) / len(launches)

    assert asked(WrongSession, LATELY) < 0.25 and asked(ReferenceSession, 0) > 0.75


def test_tokens_that_do_not_exist_are_no_drafts(demo_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shard cuts guesses at the first one that a step would refuse."""

    class BeyondSession(WrongSession):
        beyond = True

    wanted = request(PROMPT, 20)
    one = opened(demo_tokenizer, BeyondSession, monkeypatch)
    key = one.scheduler.add(wanted)
    one.run()
    assert one.tokens[key] == alone(demo_tokenizer, wanted) and 0 < max(drafted(one)) <= 2


def test_they_are_counted_by_their_source(demo_tokenizer: Tokenizer) -> None:
    """As drafts of the model."""
    counted: list[tuple[DraftSource, int, int]] = []
    given: dict[str, Any] = {"proposals": PROPOSALS, "observe_drafts": lambda *count: counted.append(count)}
    one = device(demo_tokenizer, PLAN, asynchronous=False, **given)
    one.scheduler.add(request(PROMPT, 30))
    one.run()
    assert {source for source, _, _ in counted} == {DraftSource.MODEL}
    assert all(accepted == drafts for _, drafts, accepted in counted)


def test_a_long_match_in_the_text_counts_more(demo_tokenizer: Tokenizer) -> None:
    """Where the text repeats itself, it is drafted from; where it does not, from the guesses."""
    counted: list[DraftSource] = []
    given: dict[str, Any] = {"proposals": PROPOSALS, "observe_drafts": lambda source, *_: counted.append(source)}
    one = device(demo_tokenizer, PLAN, asynchronous=False, vocab_size=3, **given)
    for seed in range(4):
        one.scheduler.add(request(tuple(n % 3 for n in range(9 + seed)), 60, seed))
    one.run()
    assert {DraftSource.MODEL, DraftSource.NGRAM} <= set(counted)
