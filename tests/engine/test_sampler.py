"""The sampler against the published formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from tgi_core.backend import SAMPLING, OutputOptions, Request, RowFaultKind, Sampling, SamplingSpec, SamplingStage
from tgi_core.backend import sampling as formula
from tgi_core.backend.batch_tracker import RowState
from tgi_core.engine.prompt_scores import prompt_logprobs
from tgi_core.engine.sampler import likeliest, sample
from tgi_core.engine.warping import exact

VOCAB = 24

samplings = st.builds(
    Sampling,
    do_sample=st.booleans(),
    temperature=st.sampled_from([0.31, 0.7, 1.0, 1.9]),
    top_k=st.sampled_from([0, 1, 3, 7, 100]),
    top_p=st.sampled_from([1.0, 0.1234, 0.618, 0.9137]),
    typical_p=st.sampled_from([1.0, 1.0, 0.2345, 0.8171]),
    min_p=st.sampled_from([0.0, 0.0, 0.0713, 0.3571, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.37, 0.71]),
    frequency_penalty=st.sampled_from([0.0, 0.53, -0.29]),
    presence_penalty=st.sampled_from([0.0, 0.41]),
    watermark=st.sampled_from([0.0, 0.0, 1.93, -0.87]),
    watermark_gamma=st.sampled_from([0.25, 0.5]),
    logit_bias=st.sampled_from([(), ((3, 1.7),), ((0, -100.0), (5, 0.9))]),
    seed=st.integers(0, 2**64 - 1),
)
rows_of_tokens = st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=12)
logits = st.lists(st.sampled_from([-3.21, -1.07, 0.0, 0.4142, 1.618, 2.718, 3.1]), min_size=VOCAB, max_size=VOCAB)


def live(id: int, tokens: Sequence[int], sampling: Sampling, top_n: int = 0, masked: bool = False) -> RowState:
    """A row that is about to choose its next token; half of its tokens were generated."""
    want = OutputOptions(logprobs=True, top_n=top_n)
    request = Request(id, tuple(tokens), len(tokens) // 2, 0, ((1,),), 1, sampling, want, masked)
    return RowState(request, list(tokens), len(tokens), ([1],))


def expected(values: Sequence[float], row: RowState, allowed: Sequence[bool] | None = None) -> tuple[int, dict[int, float]]:
    """Token and distribution by the formula."""
    given = dict(enumerate(values))
    how = row.request.sampling
    only = None if allowed is None else {i for i, flag in enumerate(allowed) if flag}
    logprobs = formula.distribution(given, how, row.tokens, row.request.prompt_len, only)
    return formula.choose(logprobs, how, len(row.tokens)), logprobs


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(logits, rows_of_tokens, samplings), min_size=1, max_size=5))
def test_formula(cases: list[tuple[list[float], list[int], Sampling]]) -> None:
    """Tokens, logprobs and top tokens of a mixed batch are those of the formula, row by row, ties included."""
    rows = [live(i, tokens, how, top_n=4) for i, (_, tokens, how) in enumerate(cases)]
    found = sample(torch.tensor([values for values, _, _ in cases]), rows, None)
    for i, (values, _, _) in enumerate(cases):
        token, logprobs = expected(values, rows[i])
        assert found.tokens[i] == token
        assert found.logprobs[i] == pytest.approx(logprobs[token], abs=1e-5)
        best = sorted(logprobs, key=lambda t: (-round(logprobs[t], 5), t))[:4]
        assert [top.id for top in found.top[i]] == best


@settings(max_examples=60, deadline=None)
@given(logits, rows_of_tokens, samplings, st.lists(st.booleans(), min_size=VOCAB, max_size=VOCAB).filter(any))
def test_mask(values: list[float], tokens: list[int], how: Sampling, allowed: list[bool]) -> None:
    """A mask applies after the penalties and before the filters; a token that it forbids is never chosen."""
    row = live(1, tokens, how, masked=True)
    found = sample(torch.tensor([values]), [row], torch.tensor([allowed]))
    assert found.tokens[0] == expected(values, row, allowed)[0]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(logits, rows_of_tokens, samplings), min_size=2, max_size=5))
def test_independent_of_mates(cases: list[tuple[list[float], list[int], Sampling]]) -> None:
    """A row gets the same token alone as in any batch."""
    rows = [live(i, tokens, how) for i, (_, tokens, how) in enumerate(cases)]
    together = sample(torch.tensor([values for values, _, _ in cases]), rows, None)
    for i, (values, _, _) in enumerate(cases):
        assert sample(torch.tensor([values]), [rows[i]], None).tokens == [together.tokens[i]]


def test_wide_vocabulary_agrees_with_formula() -> None:
    """Rows whose nucleus fits the head that is looked at first, and rows whose nucleus doesn't, both follow the formula."""
    generator = torch.Generator().manual_seed(3)
    flat, sharp = torch.randn(2000, generator=generator) * 0.1, torch.randn(2000, generator=generator) * 4
    for values in (flat, sharp):
        for seed in range(20):
            row = live(1, [1, 2], Sampling(do_sample=True, top_p=0.9, seed=seed))
            assert sample(values.unsqueeze(0), [row], None).tokens[0] == expected(values.tolist(), row)[0]


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_row_fault(poison: float) -> None:
    """A row whose logits are not finite fails alone; its mates are chosen as ever."""
    scores = torch.linspace(-1, 1, VOCAB).repeat(3, 1)
    scores[1, 5] = poison
    found = sample(scores, [live(i, [1, 2], Sampling(do_sample=i == 2, seed=1)) for i in range(3)], None)
    assert list(found.faults) == [1] and found.faults[1].kind is RowFaultKind.NAN
    assert found.tokens[0] == VOCAB - 1


def test_empty_mask_is_a_row_fault() -> None:
    """A mask that allows nothing ends its own row only."""
    allowed = torch.ones(2, VOCAB, dtype=torch.bool)
    allowed[0] = False
    found = sample(torch.zeros(2, VOCAB), [live(i, [1, 2], Sampling(), masked=i == 0) for i in range(2)], allowed)
    assert list(found.faults) == [0] and found.faults[0].kind is RowFaultKind.MASK


def test_top_tokens_break_ties_by_id() -> None:
    """Of equally likely tokens the lowest ids are named, in rising order."""
    assert [token.id for token in likeliest(torch.zeros(50).log_softmax(-1), 5)] == [0, 1, 2, 3, 4]


class LargestTensor(TorchDispatchMode):
    """The most elements that an operator's result has."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and not made._is_view():
            self.elements = max(self.elements, made.numel())
        return made


def test_prompt_logprobs_of_a_long_prompt() -> None:
    """Logits and scores are those of 512 positions at most, and the logprobs those of all positions at once."""
    hidden, weight = (torch.randn(size, 16, generator=torch.Generator().manual_seed(1)).bfloat16() for size in (2000, 64))
    following = torch.tensor([(7 * i) % 64 for i in range(2000)])
    whole = (hidden @ weight.T).float().log_softmax(-1)[torch.arange(2000), following]
    with LargestTensor() as largest:
        found = prompt_logprobs(lambda part: part @ weight.T, hidden, following)
    assert torch.equal(found, whole)
    assert largest.elements <= 512 * 64


def test_prompt_logprobs() -> None:
    """They are the model's own, of each next prompt token."""
    scores: Tensor = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0))
    wanted = scores.log_softmax(-1)[torch.arange(3), torch.tensor([4, 5, 6])].tolist()
    assert prompt_logprobs(torch.Tensor.clone, scores, torch.tensor([4, 5, 6])).tolist() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("vocab", [250, 131_072])
def test_the_bits_of_a_row_are_its_own(vocab: int) -> None:
    """Logprobs and top tokens of a row are the same bits alone and among mates, whose filters look at more or less of the vocabulary."""
    scores = torch.randn(7, vocab, generator=torch.Generator().manual_seed(1)) * 3
    hows = (
        Sampling(),
        Sampling(True, 1.3, top_k=20, seed=7),
        Sampling(True, 0.7, top_p=0.8, seed=8),
        Sampling(True, 1.0, seed=9),
        Sampling(True, 2.0, top_k=3, top_p=0.95, seed=1),
        Sampling(True, 1.1, typical_p=0.6, seed=5),
        Sampling(True, 1.4, min_p=0.03, seed=6),
    )
    rows = [live(index, (1, 2), how, top_n=4) for index, how in enumerate(hows)]
    together = sample(scores, rows, None)
    for index, row in enumerate(rows):
        alone = sample(scores[index : index + 1], [row], None)
        assert (alone.tokens[0], alone.logprobs[0]) == (together.tokens[index], together.logprobs[index])
        assert alone.top[0] == together.top[index]
    following = torch.arange(7)
    alone_scores = [prompt_logprobs(torch.Tensor.clone, scores[i : i + 1], following[i : i + 1]) for i in range(7)]
    assert torch.equal(prompt_logprobs(torch.Tensor.clone, scores, following), torch.cat(alone_scores))


@pytest.mark.parametrize("spec", SAMPLING, ids=lambda spec: spec.name)
def test_every_field_of_the_contract(spec: SamplingSpec) -> None:
    """Each value that the contract's table tries, alone and behind top-p, over a vocabulary of which the sampler looks at a head first."""
    values = (torch.randn(2000, generator=torch.Generator().manual_seed(2)) * 2).tolist()
    for value in spec.tried:
        for behind in ({}, {"top_p": 0.9}):
            fields: dict[str, Any] = {"do_sample": spec.stage is not SamplingStage.PENALTY, "seed": 3, **behind}
            fields |= {**dict(spec.beside), spec.name: value}
            row = live(1, (1, 2, 3, 4, 3), Sampling(**fields), top_n=3)
            token, logprobs = expected(values, row)
            found = sample(torch.tensor([values]), [row], None)
            assert found.tokens == [token]
            assert found.logprobs == pytest.approx([logprobs[token]], abs=1e-4)
            assert {top.id for top in found.top[0]} <= set(logprobs)


@pytest.mark.parametrize("min_p", [1e-9, 1e-4, 0.5])
@pytest.mark.parametrize("spread", [0.001, 1.0, 6.0])
def test_min_p_beyond_the_head(min_p: float, spread: float) -> None:
    """However many tokens it keeps, ties at the edge included: where the head does not hold them, all are looked at."""
    values = (torch.randn(3000, generator=torch.Generator().manual_seed(4)) * spread).round(decimals=2).tolist()
    rows = [live(1, (1, 2), Sampling(True, min_p=min_p, seed=seed), top_n=1) for seed in range(4)]
    found = sample(torch.tensor([values] * 4), rows, None)
    for index, row in enumerate(rows):
        token, logprobs = expected(values, row)
        assert found.tokens[index] == token
        assert found.logprobs[index] == pytest.approx(logprobs[token], abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 5, 40]), st.sampled_from([1.0, 0.8]), st.sampled_from([0.02, 0.1, 0.5]))
def test_min_p_is_that_of_transformers(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    """The same tokens are left as by its warpers, in their order."""
    scores = torch.randn(1, 300, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    warpers = [TemperatureLogitsWarper(1.7), *([TopKLogitsWarper(top_k)] if top_k else []), TopPLogitsWarper(top_p)]
    left = scores
    for warper in (*warpers, MinPLogitsWarper(min_p)):
        left = warper(torch.zeros(1, 1, dtype=torch.long), left)
    found = formula.warp(dict(enumerate(scores[0].tolist())), Sampling(True, 1.7, top_k, top_p, min_p=min_p))
    assert set(found) == set((left[0] > -torch.inf).nonzero().flatten().tolist())


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "xpu:0"])
def test_doubles_are_where_there_are_some(device: str) -> None:
    """Intel's GPUs may have none: what is drawn from there is computed on the host."""
    with FakeTensorMode():
        found = exact(torch.empty(2, VOCAB, device=device))
    assert found.dtype is torch.float64 and found.device.type == ("cpu" if device.startswith("xpu") else device.partition(":")[0])
