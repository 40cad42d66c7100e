"""The watermark's greenlists: those of torch and of TGI, and the test that finds them in a text."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tgi_core.backend.watermark import HASH_KEY, greenlist, mt19937, permutation, z_score

VOCAB = 4096


def drawn_by_torch(seed: int, size: int) -> list[int]:
    """The permutation that TGI's watermark takes the head of."""
    made: list[int] = torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()
    return made


@pytest.mark.parametrize("seed", [0, 1, HASH_KEY * 11, HASH_KEY * 4095, 2**32 - 1, HASH_KEY * 250_000])
@pytest.mark.parametrize("size", [1, 2, 7, 623, 4096, 50_257])
def test_permutations_are_those_of_torch(seed: int, size: int) -> None:
    """Sizes on both sides of the generator's state, and seeds beyond 32 bits."""
    assert permutation(seed, size, size) == drawn_by_torch(seed, size)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 300_000), st.integers(1, 3000), st.floats(0, 1))
def test_greenlists_are_those_of_tgi(previous: int, size: int, gamma: float) -> None:
    """The first int(size × gamma) of torch's permutation by 15485863 × the previous token."""
    assert greenlist(previous, size, gamma) == set(drawn_by_torch(15485863 * previous, size)[: int(size * gamma)])


def test_the_generator() -> None:
    """The first outputs of MT19937 by the seed 5489, and its 10,000th, which the C++ standard names."""
    words = [word for word, _ in zip(mt19937(5489), range(10_000), strict=False)]
    assert words[:2] == [3499211612, 581869302] and words[-1] == 4123659995


@pytest.mark.parametrize("gamma", [0.25, 0.5])
def test_z_scores(gamma: float) -> None:
    """A text of green tokens only scores the most there is; one of random tokens, little; repetitions count once where asked."""
    draw = Random(1)
    green, plain = [5], [draw.randrange(VOCAB) for _ in range(200)]
    for _ in range(199):
        green.append(draw.choice(sorted(greenlist(green[-1], VOCAB, gamma))))
    assert z_score(green, VOCAB, gamma) == pytest.approx((199 * (1 - gamma) / gamma) ** 0.5)
    assert abs(z_score(plain, VOCAB, gamma)) < 3
    pair = [5, min(greenlist(5, VOCAB, gamma))]
    assert z_score(pair * 50, VOCAB, gamma, distinct=True) < 3
    for bad in ([1], []):
        with pytest.raises(ValueError, match="two tokens"):
            z_score(bad, VOCAB, gamma)
