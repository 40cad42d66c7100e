"""Sampling from processed logits in Triton's interpreter: the tokens of the host's sampler, over steps that count their own tokens.

`test_processing.py` runs this file in a process of its own.
"""

from __future__ import annotations

import os
import random
from itertools import count

import numpy as np
import pytest
import torch
import triton

from tests.triton.processed_rows import (
    Device,
    Vary,
    anything,
    check_step,
    masked,
    new_rows,
    penalized,
    random_step,
    top,
    typical,
)
from tgi_core.backend import OutputOptions, Request, Sampling
from tgi_core.backend.batch_tracker import RowState
from tgi_core.engine.ahead.processing_check import processing_disagreement
from tgi_core.engine.sampler import MASKED, NOT_FINITE, UNBOUND
from tgi_core.engine.triton.sampling import TritonSampler

ROWS = int(os.environ.get("TGI_TRITON_PROCESSED", "10"))
"""Rows per case, each of which is sampled `STEPS` times."""
ANY_ROWS = int(os.environ.get("TGI_TRITON_ROWS", "36"))
"""Rows that ask for anything; each step of one counts. `make random-rows` runs many."""
STEPS = 3

pytestmark = [
    pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="needs the interpreter"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*"),  # the interpreter is numpy, which warns of what is not finite
]


@pytest.mark.parametrize("vary", [penalized, masked, typical, top], ids=lambda vary: vary.__name__)
@pytest.mark.parametrize(("vocab", "dtype"), [(15, torch.float32), (300, torch.bfloat16), (4099, torch.float16)])
def test_the_hosts_tokens(vary: Vary, vocab: int, dtype: torch.dtype) -> None:
    """Step after step, rows get the tokens, logprobs and top tokens of the host's sampler, in any order and beside any others."""
    chance, generator = random.Random(vocab), torch.Generator().manual_seed(vocab)
    device = Device(new_rows(vary, chance, vocab, ROWS), vocab)
    for _ in range(STEPS):
        logits, masks = random_step(ROWS, vocab, chance, generator)
        check_step(device, logits.to(dtype), masks, chance.sample(range(ROWS), ROWS - 1))


def test_any_rows() -> None:
    """So do rows that ask for anything at once, in float32, over vocabularies of one token up to several chunks."""
    left = ANY_ROWS
    for seed in count():
        if left <= 0:
            break
        chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        vocab, rows = chance.choice((1, 2, 15, 300, 1025, 4096, 4099, 9001)), min(12, left)
        device = Device(new_rows(anything, chance, vocab, rows), vocab)
        for _ in range(STEPS):
            check_step(device, *random_step(rows, vocab, chance, generator), chance.sample(range(rows), rows))
            left -= rows


@pytest.mark.parametrize("precision", [torch.float64, torch.float32])
def test_the_self_check(precision: torch.dtype) -> None:
    """The check that a device passes at start finds nothing wrong."""
    assert processing_disagreement(TritonSampler(precision), torch.device("cpu"), 9001) == ""


def test_rows_that_fail() -> None:
    """A row whose logits are not finite, whose bias is too large, or whose mask allows nothing fails with that reason, and alone."""
    large = Sampling(logit_bias=((3, 3.3e38), (3, 3.3e38)))
    chance = random.Random(0)
    rows = new_rows(lambda chance, vocab: (Sampling(frequency_penalty=0.5), OutputOptions(), False), chance, 100, 6)
    for place, changes in {1: {"sampling": large}, 2: {"masked": True}, 3: {"masked": True}, 4: {"sampling": large}}.items():
        request = rows[place].request
        fields = {name: getattr(request, name) for name in Request.__slots__} | changes
        rows[place] = RowState(Request(**fields), rows[place].tokens, 0, ([place],))
    device = Device(rows, 100)
    logits = torch.randn(6, 100, generator=torch.Generator().manual_seed(0))
    logits[0, 99] = logits[3, 5] = float("nan")
    logits[4, 2] = float("inf")
    masks = np.zeros((6, 100), bool)
    masks[3] = True
    found, wanted = device.sample(logits, list(range(6)), masks)
    assert found.faults == wanted.faults
    assert wanted.faults == {0: NOT_FINITE, 1: UNBOUND, 2: MASKED, 3: NOT_FINITE, 4: NOT_FINITE}
    assert found.tokens[5] == wanted.tokens[5]
