"""Speculation changes how many steps an answer takes, and nothing else."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scheduler.checks import check_empty
from tests.scheduler.device import Device, alone, device, request
from tgi_core.backend import Feature, Grant, Mixing, WarmupPlan
from tgi_core.scheduler.ngram import LONGEST, SHORTEST, NgramIndex
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
