"""Speculation changes how many steps an answer takes, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scheduler.checks import check_empty
from tests.scheduler.device import Device, alone, device, request
from tgi_core.backend import Feature, Grant, Mixing, WarmupPlan
from tgi_core.scheduler import SchedulerOptions
from tgi_core.scheduler.ngram import LONGEST, NO_MATCH, READ_AT_ONCE, SHORTEST, Match, NgramIndex
from tgi_core.scheduler.prediction import Prediction
from tgi_core.scheduler.suffix import EarlierAnswers
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import Decode, Prefill

FEW = 3
"""A vocabulary in which texts repeat themselves."""
PLAN = WarmupPlan(max_row_tokens=256, num_blocks=64, block_size=4, draft=4)


def drafts(one: Device) -> list[Grant]:
    """What the steps so far granted with drafts."""
    launches = [turn.launch for turn in one.turns if isinstance(turn.launch, Prefill | Decode)]
    return [grant for launch in launches for grant in launch.grants if grant.drafts]


def repeated(tokens: list[int], at: int) -> list[int]:
    """A text whose end goes on as it did from `at`."""
    whole = list(tokens)
    while len(whole) < 80:
        whole.append(whole[at + len(whole) - len(tokens)])
    return whole


def naive(tokens: list[int], most: int) -> set[tuple[int, ...]]:
    """What may follow by the latest places of the longest suffix."""
    for size in range(min(LONGEST, len(tokens) - 1), SHORTEST - 1, -1):
        places = [at for at in range(size, len(tokens)) if tokens[at - size : at] == tokens[-size:]]
        if places:
            return {tuple(repeated(tokens, at)[at : at + most]) for at in places}
    return {()}


@given(tokens=st.lists(st.integers(0, 2), max_size=60), most=st.integers(1, 6), cuts=st.lists(st.integers(0, 60), max_size=4))
def test_the_longest_suffix(tokens: list[int], most: int, cuts: list[int]) -> None:
    """A draft is what followed the longest suffix that occurred before, however often the index was asked on the way."""
    growing: list[int] = []
    index = NgramIndex(growing)
    for cut in sorted(cuts):
        growing += tokens[len(growing) : cut]
        index.find()
    growing += tokens[len(growing) :]
    match = index.find()
    found = index.drafts(match.place, most) if match.length else ()
    if len(tokens) <= 17:  # every place is compared
        assert found in naive(tokens, most)
    else:
        assert bool(found) == (naive(tokens, most) != {()}) and len(found) in (0, most)


def test_a_long_text_is_indexed_over_several_lookups() -> None:
    """A lookup reads some tokens of a long prompt; later ones find what is there by then."""
    text = list(range(3 * READ_AT_ONCE))
    text += text[-20:-10]
    index = NgramIndex(text)
    assert index.find() == NO_MATCH
    found = [index.find() for _ in range(3)]
    assert found[-1] == Match(LONGEST, 3 * READ_AT_ONCE - 10)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_fewer_steps_for_the_same_tokens(demo_tokenizer: Tokenizer, asynchronous: bool) -> None:
    """Texts that repeat themselves take fewer steps than they have tokens, greedy and sampled, in lock step and one ahead."""
    wanted = [request(tuple(n % FEW for n in range(size)), 60, seed) for size, seed in ((9, None), (5, 1), (12, 2), (7, None))]
    one = device(demo_tokenizer, PLAN, asynchronous=asynchronous, vocab_size=FEW)
    keys = [one.scheduler.add(each) for each in wanted]
    one.run()
    for key, each in zip(keys, wanted, strict=True):
        assert one.tokens[key] == alone(demo_tokenizer, each, vocab_size=FEW)
    accepted = sum(map(len, one.tokens.values())) - sum(isinstance(turn.launch, Prefill | Decode) for turn in one.turns)
    assert drafts(one) and accepted > 0
    check_empty(one)


@pytest.mark.parametrize("mixing", [Mixing.EAGER, Mixing.NONE])
def test_rows_that_end_with_their_drafts(demo_tokenizer: Tokenizer, mixing: Mixing) -> None:
    """A row may end in a step with drafts while a later step is unread in which it takes no part: its count of tokens is still right."""
    for first, second in product(range(5, 12), repeat=2):
        one = device(demo_tokenizer, PLAN, mixing=mixing, vocab_size=2)
        keys = [one.scheduler.add(each) for each in (request((0, 1) * 4, first), request((1, 0, 0, 1, 0), second, 3))]
        one.run()
        assert [len(one.tokens[key]) for key in keys] == [first, second]


def test_a_session_that_runs_no_drafts_gets_none(demo_tokenizer: Tokenizer) -> None:
    """Whatever its capacity says."""
    one = device(demo_tokenizer, PLAN, without=frozenset({Feature.SPECULATION}), vocab_size=FEW)
    one.scheduler.add(request((0, 1, 2) * 4, 30))
    one.run()
    assert not drafts(one)


def test_drafts_are_no_more_than_tokens_left(demo_tokenizer: Tokenizer) -> None:
    """The last token of an answer comes without drafts beyond it."""
    one = device(demo_tokenizer, PLAN, asynchronous=False, vocab_size=1)
    key = one.scheduler.add(request((0, 0, 0, 0), 31))
    one.run()
    assert one.tokens[key] == [0] * 31 and max(len(grant.drafts) for grant in drafts(one)) == 4
    assert sum(isinstance(turn.launch, Prefill | Decode) for turn in one.turns) <= 12


def test_drafts_need_memory_but_preempt_nobody(demo_tokenizer: Tokenizer) -> None:
    """Rows that fill the cache decode without drafts."""
    plan = WarmupPlan(max_row_tokens=32, num_blocks=10, block_size=4, draft=4)
    one = device(demo_tokenizer, plan, asynchronous=False, vocab_size=1)
    keys = [one.scheduler.add(request((0,) * 8, 8)) for _ in range(3)]
    one.run()
    assert all(one.tokens[key] == [0] * 8 for key in keys)


def steps(one: Device) -> int:
    """How many steps were launched so far."""
    return sum(isinstance(turn.launch, Prefill | Decode) for turn in one.turns)


def predicted(tokenizer: Tokenizer, prediction: list[int]) -> tuple[list[int], int, int, int]:
    """An answer of 60 tokens with a prediction, the number of its steps, and the tokens of the prediction accepted and rejected. No
    time passes, so that drafts cost nothing."""
    one = device(tokenizer, PLAN, asynchronous=False, clock=lambda: 0.0)
    key = one.scheduler.add(replace(request((1, 2, 3), 60), prediction=tuple(prediction)))
    found = one.scheduler.sequences[key].prediction
    one.run()
    check_empty(one)
    return one.tokens[key], steps(one), *((found.accepted, found.rejected) if found else (0, 0))


def test_a_prediction(demo_tokenizer: Tokenizer) -> None:
    """An answer takes few steps if it is as predicted, more if it was edited, as many as it has tokens if it is another one; it is the
    same in each case."""
    answer, plain, *_ = predicted(demo_tokenizer, [])
    assert plain == len(answer)
    right, few, accepted, rejected = predicted(demo_tokenizer, answer)
    assert right == answer and (accepted, rejected) == (60 - few, 0) and few <= 1 + 60 / 4
    edits = {
        "replaced": [*answer[:30], 1999, *answer[31:]],
        "inserted": [*answer[:30], 1999, 1998, 1997, *answer[30:]],
        "deleted": answer[:30] + answer[33:],
        "appended": [1999, 1998, *answer],
    }
    for name, edited in edits.items():
        found, more, accepted, rejected = predicted(demo_tokenizer, edited)
        assert found == answer and few < more < 60 / 2 and accepted == 60 - more and rejected <= 4, name
    found, most, accepted, rejected = predicted(demo_tokenizer, [1999] * 60)
    assert found == answer and most == plain and accepted == 0


tokens = st.integers(0, 2)


@given(prediction=st.lists(tokens, max_size=30), prompt=st.lists(tokens, max_size=4), answer=st.lists(tokens, max_size=30))
def test_the_place_in_a_prediction(prediction: list[int], prompt: list[int], answer: list[int]) -> None:
    """While the answer is the prediction's beginning, its next tokens are proposed; later on, what follows the newest tokens in it."""
    text = list(prompt)
    found = Prediction(tuple(prediction), text)
    for place, token in enumerate(answer, 1):
        text.append(token)
        match = found.find()
        drafts = found.drafts(match.place, 5) if match.length else ()
        if answer[:place] == prediction[:place]:
            assert drafts == tuple(prediction[place : place + 5])
        elif drafts:
            assert match.length >= 1 and prediction[match.place - match.length : match.place] == text[-match.length :]
            assert drafts == tuple(prediction[match.place : match.place + 5])


salts = st.sampled_from(["", "a", "b"])


@given(
    size=st.integers(8, 40),
    answers=st.lists(st.tuples(salts, st.lists(tokens, max_size=20)), max_size=8),
    salt=salts,
    text=st.lists(tokens, min_size=1, max_size=10),
)
def test_earlier_answers(size: int, answers: list[tuple[str, list[int]]], salt: str, text: list[int]) -> None:
    """What is proposed followed the end of the text in an earlier answer to a request with the same salt; the latest answer is always
    known, and no more than `size` tokens are."""
    earlier = EarlierAnswers(size)
    for other, answer in answers:
        earlier.add(other, answer)
    match = earlier.find(salt, text)
    end = text[-match.length :]
    found = [
        tuple(answer[at : at + 4])
        for other, answer in answers
        for at in range(match.length, len(answer))
        if other == salt and answer[at - match.length : at] == end
    ]
    if match.length:
        assert SHORTEST <= match.length <= LONGEST
        drafts = earlier.drafts(match.place, 4)
        assert drafts and drafts in found
    elif answers and answers[-1][0] == salt:
        latest = answers[-1][1][1 - size :]
        assert text[-2:] not in [latest[at : at + 2] for at in range(len(latest) - 2)] or len(text) < SHORTEST


def test_answers_speed_up_later_ones_of_the_same_salt(demo_tokenizer: Tokenizer) -> None:
    """Asked again, the same answer comes in fewer steps; for another salt it takes as many as at first."""
    chosen = SchedulerOptions(earlier_answers=True)
    one = device(demo_tokenizer, PLAN, chosen, lambda: 0.0, asynchronous=False)
    spent, answers = [], []
    for salt in ("", "", "other"):
        before = steps(one)
        key = one.scheduler.add(request((1, 2, 3), 60, salt=salt))
        one.run()
        answers.append(one.tokens[key])
        spent.append(steps(one) - before)
    assert answers[0] == answers[1] == answers[2]
    assert spent[0] == spent[2] == 60 and spent[1] < 20
    check_empty(one)


def test_salts_that_share_a_bucket() -> None:
    """Tokens are compared, and their salts, not only hashes: no answer is found for another salt, however small the table is."""
    earlier = EarlierAnswers(8)
    earlier.add("a", [1, 2, 3, 4])
    assert earlier.find("a", [1, 2]) == Match(2, 2)
    assert all(earlier.find(f"b{number}", [1, 2]) == NO_MATCH for number in range(200))
