"""The reference backend and its synchronous twin keep every clause, and the twins agree."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tgi_conformance import CLAUSES, Clause, Subject

from tests.scheduler.device import quiet
from tgi_core.backend import Capacity, Sampling, WarmupPlan, sampling
from tgi_core.backend.reference import ReferenceSession
from tgi_core.backend.session import Session

logits = st.dictionaries(st.integers(0, 50), st.floats(-8, 8), min_size=1, max_size=20)


def subject(asynchronous: bool) -> Subject:
    """Small blocks, so that rows cross them."""

    def open_session() -> tuple[Session, Capacity]:
        session = Session(ReferenceSession(256, 512, asynchronous=asynchronous), "reference")
        plan = WarmupPlan(max_rows=8, max_row_tokens=64, max_step_tokens=64, num_blocks=64, block_size=4)
        return session, session.warmup(plan, quiet)

    return Subject(open_session, 256)


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.id)
def test_keeps_the_clause(clause: Clause, asynchronous: bool) -> None:
    """Late rows or not, the law holds."""
    clause.check(subject(asynchronous))


def test_uniform_is_philox() -> None:
    """The generator's known answer for key 0 and counter 0 (Random123, philox4x32-10: 6627e8d5 …)."""
    assert sampling.uniform(0, 0) == (0x6627E8D5 >> 8) / 2**24


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_uniform_is_in_the_unit_interval(seed: int, position: int) -> None:
    """Every draw is in [0, 1) and exact in float32."""
    assert 0.0 <= sampling.uniform(seed, position) < 1.0


def test_uniform_is_even() -> None:
    """Over many positions the mean is near a half."""
    draws = [sampling.uniform(3, position) for position in range(4000)]
    assert abs(sum(draws) / len(draws) - 0.5) < 0.02


@given(logits, st.integers(0, 5), st.floats(0.05, 1.0), st.floats(0.05, 1.0), st.floats(0.2, 3.0))
def test_a_distribution_is_one(values: dict[int, float], top_k: int, top_p: float, typical_p: float, temperature: float) -> None:
    """Whatever is filtered out, the rest sums to one, and a choice is among the rest."""
    how = Sampling(True, temperature, top_k, top_p, typical_p, seed=1)
    logprobs = sampling.distribution(values, how, (), 0)
    assert math.isclose(sum(map(math.exp, logprobs.values())), 1.0, rel_tol=1e-9)
    assert not top_k or len(logprobs) <= top_k
    assert sampling.choose(logprobs, how, 3) in logprobs


@given(logits, st.lists(st.integers(0, 50), max_size=6))
def test_penalties(values: dict[int, float], history: Sequence[int]) -> None:
    """Repetition acts once per distinct token of the row, frequency per generated occurrence, presence once; bias is added."""
    how = Sampling(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25, logit_bias=((3, 4.0),))
    out = sampling.penalize(values, how, [*history, 7, 7], len(history))
    for token, value in values.items():
        expected = (value * 2 if value < 0 else value / 2) if token in {*history, 7} else value
        expected += (4.0 if token == 3 else 0.0) - (1.25 if token == 7 else 0.0)
        assert math.isclose(out[token], expected)
