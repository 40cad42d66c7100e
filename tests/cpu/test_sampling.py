"""Reading logits natively against the sampler's own operators."""

from __future__ import annotations

import pytest
import torch
from tgi_backend_cpu.kernels import Kernels
from tgi_backend_cpu.sampling import NativeSampler
from torch import Tensor

from tgi_core.backend import OutputOptions, Request, RowFaultKind, Sampling
from tgi_core.backend.batch_tracker import RowState
from tgi_core.engine.sampler import sample


def rows(samplings: list[Sampling], want: OutputOptions = OutputOptions()) -> list[RowState]:
    """One live row per sampling."""
    return [RowState(Request(i, (1, 2, 3), 3, 0, ((1,),), 3, s, want), [1, 2, 3], 3, ([1],)) for i, s in enumerate(samplings)]


def logits(count: int, vocab: int, seed: int = 0) -> Tensor:
    """Random logits."""
    return torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("vocab", [1, 15, 64, 1000, 49152])
def test_plain_rows_get_what_the_formula_gives(kernels: Kernels, vocab: int) -> None:
    """Greedy rows and rows with a temperature get the very tokens that the sampler makes without the kernels, and their logprobs."""
    live = rows([Sampling(do_sample=i % 2 > 0, temperature=(0.1, 0.7, 1.0, 5.0)[i // 2 % 4], seed=i) for i in range(24)])
    scores = logits(24, vocab)
    found, wanted = sample(scores, live, None, NativeSampler(kernels)), sample(scores, live, None)
    assert found.tokens == wanted.tokens and not found.faults
    assert torch.allclose(torch.tensor(found.logprobs), torch.tensor(wanted.logprobs), atol=2e-6, rtol=2e-6)


def test_other_rows_are_left_to_the_sampler(kernels: Kernels) -> None:
    """Rows with penalties, filters, masks or top tokens in the same step get what they get alone."""
    kinds = [Sampling(), Sampling(repetition_penalty=1.3), Sampling(do_sample=True, top_k=5), Sampling(do_sample=True, top_p=0.5)]
    live, scores = rows(kinds), logits(4, 300)
    allowed = torch.ones(4, 300, dtype=torch.bool)
    found, wanted = sample(scores, live, allowed, NativeSampler(kernels)), sample(scores, live, allowed)
    assert found.tokens == wanted.tokens
    tops = rows([Sampling()] * 3, OutputOptions(top_n=3))
    assert sample(scores[:3], tops, None, NativeSampler(kernels)).top == sample(scores[:3], tops, None).top


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_fails_alone(kernels: Kernels, bad: float) -> None:
    """One bad number anywhere is a fault of its row, and its mates go on."""
    for place in (0, 17, 99):
        scores = logits(3, 100)
        scores[1, place] = bad
        found = sample(scores, rows([Sampling(), Sampling(do_sample=True), Sampling()]), None, NativeSampler(kernels))
        assert {i: fault.kind for i, fault in found.faults.items()} == {1: RowFaultKind.NAN}
        assert found.tokens[0] == int(scores[0].argmax()) and found.tokens[2] == int(scores[2].argmax())


def test_ties_and_extremes(kernels: Kernels) -> None:
    """Of equal logits the lowest id is taken; a token with nearly all of the mass is drawn."""
    scores = torch.zeros(2, 40)
    scores[0, [7, 30]] = 5.0
    scores[1, 33] = 2000.0
    found = sample(scores, rows([Sampling(), Sampling(do_sample=True, seed=3)]), None, NativeSampler(kernels))
    assert found.tokens == [7, 33] and found.logprobs[1] == 0
