"""Plain rows' tokens on the device are those of the published formula."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tgi_core.backend import Request, Sampling
from tgi_core.backend.batch_tracker import RowState
from tgi_core.backend.sampling import uniform
from tgi_core.engine.ahead.sampling import TorchSampler, seed_words, uniforms
from tgi_core.engine.sampler import sample


@given(st.lists(st.tuples(st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**40)), min_size=1, max_size=20))
def test_uniform_numbers(pairs: list[tuple[int, int]]) -> None:
    """Many at once are to the bit what they are one by one."""
    seeds, positions = [seed for seed, _ in pairs], [position for _, position in pairs]
    assert uniforms(seed_words(seeds), np.array(positions)).tolist() == [uniform(seed, position) for seed, position in pairs]


def test_tokens_are_the_host_samplers() -> None:
    """Argmax with ties, draws at temperatures, and a row whose logits are not finite."""
    logits = torch.randn(40, 300, generator=torch.Generator().manual_seed(5)) * 4
    logits[0, :9] = logits[0].max() + 1
    logits[1, 7] = float("nan")
    hows = [Sampling(do_sample=i % 3 > 0, temperature=0.3 + i / 10, seed=i) for i in range(40)]
    rows = [RowState(Request(i, (1, 2), 2, 0, ((),), 2, how), [1, 2], 2, ([],)) for i, how in enumerate(hows)]
    wanted = sample(logits, rows, None)
    temperatures = torch.tensor([how.temperature if how.do_sample else 0.0 for how in hows], dtype=torch.float64)
    numbers = torch.from_numpy(uniforms(seed_words(how.seed for how in hows), np.full(40, 2)))
    tokens, logprobs = TorchSampler().choose(logits, temperatures, numbers)
    finite = [i for i in range(40) if i != 1]
    assert tokens[finite].tolist() == [wanted.tokens[i] for i in finite] and tokens[1] == -1 and tokens[0] == 0
    assert torch.allclose(logprobs[finite].double(), torch.tensor([wanted.logprobs[i] for i in finite], dtype=torch.float64))
    greedy, _ = TorchSampler().choose(logits, None, numbers)
    assert greedy[finite].tolist() == logits[finite].argmax(-1).tolist()
