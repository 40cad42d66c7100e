"""The reference backend keeps every clause (its synchronous twin is among the suite's good twins), and its formula is a distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tgi_conformance import conformance_tests

from tests.scheduler.device import quiet
from tgi_core.backend import (
    EMPTY,
    Group,
    InvalidRequest,
    OpenOptions,
    OutOfMemory,
    Request,
    Sampling,
    UnknownBatch,
    Unsupported,
    WarmupPlan,
    sampling,
)
from tgi_core.backend.reference import ReferenceSession, backend_open
from tgi_core.backend.session import Session
from tgi_core.model_files import DEMO

logits = st.dictionaries(st.integers(0, 50), st.floats(-8, 8), min_size=1, max_size=20)


test_conformance = conformance_tests("reference", "L2", effort=0.5)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_step_that_fails(asynchronous: bool) -> None:
    """Its error comes from rows, its batch and what was derived from it are dead, and another batch goes on."""
    session = Session(ReferenceSession(256, 512, asynchronous=asynchronous, faults={3: OutOfMemory("no room")}), "reference")
    session.warmup(WarmupPlan(block_size=4), quiet)
    first = session.prefill((request(1, 1),), EMPTY, ())
    session.rows(first)
    other = session.prefill((request(2, 2),), EMPTY, ())
    session.rows(other)
    failing = session.decode((first.handle,), ())
    with pytest.raises(OutOfMemory, match="no room"):
        session.rows(failing)
    with pytest.raises(UnknownBatch):
        session.decode((failing.handle,), ())
    assert [row.request_id for row in session.rows(session.decode((other.handle,), ())).rows] == [2]


def request(id: int, block: int) -> Request:
    """Two tokens in a block of its own."""
    return Request(id, (id, 7), 2, 0, ((block,),), 2)


def test_nothing_runs_after_close() -> None:
    """The session says so."""
    session = Session(ReferenceSession(), "reference")
    session.warmup(WarmupPlan(), quiet)
    session.close()
    with pytest.raises(InvalidRequest, match="closed"):
        session.prefill((request(1, 1),), EMPTY, ())


def test_two_ranks_are_refused() -> None:
    """The toy runs on one."""
    with pytest.raises(Unsupported, match="2 ranks"):
        backend_open(OpenOptions(str(DEMO), group=Group(0, 2, "127.0.0.1:1")))


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
