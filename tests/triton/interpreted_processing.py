"""Sampling from processed logits in Triton's interpreter: the tokens of the host's sampler, over steps that count their own tokens.

`test_processing.py` runs this file in a process of its own.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import triton
from torch import Tensor

from tests.engine.ahead.late import LateQueue
from tgi_core.backend import OutputOptions, Request, Sampling
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.ahead.processing import LogitsProcessing
from tgi_core.engine.ahead.processing_check import processing_disagreement
from tgi_core.engine.ahead.row_slots import RowSlots
from tgi_core.engine.sampler import MASKED, NOT_FINITE, UNBOUND, Sampled, sample
from tgi_core.engine.triton.sampling import TritonSampler

ROWS = int(os.environ.get("TGI_TRITON_PROCESSED", "10"))
"""Rows per case, each of which is sampled `STEPS` times."""
STEPS = 3
FAULTS = {-1: NOT_FINITE, -2: UNBOUND, -3: MASKED}

pytestmark = [
    pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="needs the interpreter"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*"),  # the interpreter is numpy, which warns of what is not finite
]

Vary = Callable[[random.Random, int], tuple[Sampling, OutputOptions, bool]]
"""Draws what a row asks for, given the size of the vocabulary."""


def penalties(chance: random.Random, vocab: int) -> dict[str, float]:
    """None, one or several."""
    return {
        "repetition_penalty": chance.choice((1.0, 1.0, 0.7, 1.2, 3.0)),
        "frequency_penalty": chance.choice((0.0, 0.0, -0.4, 1.7)),
        "presence_penalty": chance.choice((0.0, 0.0, -1.1, 0.3)),
    }


def drawn(chance: random.Random) -> dict[str, object]:
    """An argmax, or a draw with some of the other filters."""
    if chance.random() < 0.3:
        return {}
    return {
        "do_sample": True,
        "temperature": chance.choice((0.3, 1.0, 1.7)),
        "top_k": chance.choice((0, 0, 3, 40)),
        "top_p": chance.choice((1.0, 1.0, 0.6, 0.95)),
        "min_p": chance.choice((0.0, 0.0, 0.05)),
        "seed": chance.getrandbits(63),
    }


def penalized(chance: random.Random, vocab: int) -> tuple[Sampling, OutputOptions, bool]:
    """Penalties and biases, some of them twice on one token."""
    bias = tuple((chance.randrange(vocab), chance.uniform(-9, 9)) for _ in range(chance.choice((0, 0, 1, 5))))
    bias += bias[:1] if chance.random() < 0.3 else ()
    return Sampling(**drawn(chance), **penalties(chance, vocab), logit_bias=bias), OutputOptions(), False  # type: ignore[arg-type]


def masked(chance: random.Random, vocab: int) -> tuple[Sampling, OutputOptions, bool]:
    """A mask in two of three rows, and penalties in some."""
    more = penalties(chance, vocab) if chance.random() < 0.3 else {}
    return Sampling(**drawn(chance), **more), OutputOptions(), chance.random() < 0.66  # type: ignore[arg-type]


def typical(chance: random.Random, vocab: int) -> tuple[Sampling, OutputOptions, bool]:
    """Typical-p in most rows, with masks in some."""
    share = chance.choice((1.0, 0.2, 0.7, 0.95, 0.999))
    return Sampling(**drawn(chance), typical_p=share), OutputOptions(), chance.random() < 0.3  # type: ignore[arg-type]


def top(chance: random.Random, vocab: int) -> tuple[Sampling, OutputOptions, bool]:
    """Top tokens in most rows, with everything else in some."""
    sampling = chance.choice((penalized, masked, typical))(chance, vocab)
    return sampling[0], OutputOptions(top_n=chance.choice((0, 1, 3, 20))), sampling[2]


class Device:
    """The device's sampler, and the host's beside it, over rows that keep what they sample."""

    def __init__(self, rows: list[RowState], vocab: int) -> None:
        self.rows, self.vocab, sampler = rows, vocab, TritonSampler()
        queue = LateQueue(eager=True)
        self.slots = RowSlots(len(rows), 8, vocab, lambda row: False, lambda row: True)
        self.newest = torch.zeros(len(rows) + 2, dtype=torch.int64)
        self.processing = LogitsProcessing(queue, sampler, self.slots, self.newest, vocab, torch.device("cpu"))

    def sample(self, logits: Tensor, order: list[int], masks: np.ndarray) -> tuple[Sampled, Sampled]:
        """What both samplers make of logits [rows, vocabulary] for the rows in this order; `masks` bool [rows, vocabulary]."""
        rows = [self.rows[place] for place in order]
        inputs = [RowInput(row, len(row.tokens) - 1, 1, yields=True) for row in rows]
        taken = np.array(self.slots.take(rows, {row.request.id for row in self.rows}), np.int64)
        asked = [place for place in order if self.rows[place].request.masked]
        padded = np.zeros((len(asked), -(-self.vocab // 32) * 32), np.uint8)
        padded[:, : self.vocab] = masks[asked]
        packed = np.packbits(padded, axis=1, bitorder="little").tobytes()
        tokens, logprobs, top = self.processing.enqueue(lambda: logits, inputs, order, taken, packed).read()
        faults = {place: FAULTS[token] for place, token in enumerate(tokens) if token < 0}
        found = Sampled(tokens, logprobs, top, faults)
        allowed = torch.ones(len(order), self.vocab, dtype=torch.bool)
        for place, row in enumerate(order):
            if self.rows[row].request.masked:
                allowed[place] = torch.from_numpy(masks[row])
        return found, sample(logits[order], rows, allowed)


def new_rows(vary: Vary, chance: random.Random, vocab: int, count: int) -> list[RowState]:
    """Rows with prompts in which tokens repeat; some have generated tokens already."""
    rows = []
    for id in range(1, count + 1):
        tokens = [chance.randrange(vocab) for _ in range(chance.randint(1, 12))] * chance.randint(1, 2)
        sampling, want, has_mask = vary(chance, vocab)
        request = Request(id, tuple(tokens), chance.randint(1, len(tokens)), 0, ((id,),), len(tokens), sampling, want, has_mask)
        rows.append(RowState(request, list(tokens), len(tokens), ([id],)))
    return rows


@pytest.mark.parametrize("vary", [penalized, masked, typical, top], ids=lambda vary: vary.__name__)
@pytest.mark.parametrize(("vocab", "dtype"), [(15, torch.float32), (300, torch.bfloat16), (4099, torch.float16)])
def test_the_hosts_tokens(vary: Vary, vocab: int, dtype: torch.dtype) -> None:
    """Step after step, rows get the tokens, logprobs and top tokens of the host's sampler, in any order and beside any others."""
    chance, generator = random.Random(vocab), torch.Generator().manual_seed(vocab)
    device = Device(new_rows(vary, chance, vocab, ROWS), vocab)
    for _ in range(STEPS):
        logits = 2 * torch.randn(ROWS, vocab, generator=generator)
        logits = torch.where(torch.arange(ROWS).unsqueeze(-1) % 3 == 0, (2 * logits).round() / 2, logits).to(dtype)
        masks = np.array([[chance.random() < chance.choice((0.05, 0.9)) for _ in range(vocab)] for _ in range(ROWS)])
        masks[:, chance.randrange(vocab)] = True
        order = chance.sample(range(ROWS), ROWS - 1)
        found, wanted = device.sample(logits, order, masks)
        assert not wanted.faults and found.tokens == wanted.tokens
        for place, row in enumerate(order):
            want = device.rows[row].request.want
            assert found.logprobs[place] == pytest.approx(wanted.logprobs[place], abs=5e-6, rel=5e-6) or not want.logprobs
            mine, theirs = found.top[place], wanted.top[place]
            assert [token.id for token in mine] == [token.id for token in theirs]
            chances = [token.logprob for token in mine]
            assert chances == pytest.approx([token.logprob for token in theirs], abs=5e-6, rel=5e-6)
            device.rows[row].tokens.append(found.tokens[place])
        assert device.newest[device.slots.take([device.rows[row] for row in order], set())].tolist() == found.tokens


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
