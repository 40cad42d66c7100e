"""Rows that ask for whatever a device samples, and its sampler beside the host's; for tests in Triton's interpreter."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tests.engine.ahead.late import LateQueue
from tgi_core.backend import OutputOptions, Request, Sampling
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.ahead.processing import LogitsProcessing
from tgi_core.engine.ahead.row_slots import RowSlots
from tgi_core.engine.sampler import MASKED, NOT_FINITE, UNBOUND, Sampled, sample
from tgi_core.engine.triton.sampling import TritonSampler

FAULTS = {-1: NOT_FINITE, -2: UNBOUND, -3: MASKED}

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


def anything(chance: random.Random, vocab: int) -> tuple[Sampling, OutputOptions, bool]:
    """Every field, each off in some rows."""
    bias = tuple((chance.randrange(vocab), chance.uniform(-9, 9)) for _ in range(chance.choice((0, 0, 0, 1, 5))))
    share = chance.choice((1.0, 1.0, 0.2, 0.7, 0.95, 0.999))
    sampling = Sampling(**drawn(chance), **penalties(chance, vocab), logit_bias=bias, typical_p=share)  # type: ignore[arg-type]
    return sampling, OutputOptions(top_n=chance.choice((0, 0, 1, 3, 20))), chance.random() < 0.3


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


def random_step(rows: int, vocab: int, chance: random.Random, generator: torch.Generator) -> tuple[Tensor, np.ndarray]:
    """Logits, float32 [rows, vocabulary], in every third row with many equal ones; and masks that all allow some token."""
    logits = 2 * torch.randn(rows, vocab, generator=generator)
    logits = torch.where(torch.arange(rows).unsqueeze(-1) % 3 == 0, (2 * logits).round() / 2, logits)
    shares = np.array([[chance.choice((0.05, 0.9))] for _ in range(rows)])
    masks = np.random.default_rng(chance.getrandbits(32)).random((rows, vocab)) < shares
    masks[:, chance.randrange(vocab)] = True
    return logits, masks


def check_step(device: Device, logits: Tensor, masks: np.ndarray, order: list[int]) -> None:
    """The rows in this order get the tokens, logprobs and top tokens of the host's sampler, and keep the tokens."""
    found, wanted = device.sample(logits, order, masks)
    assert not wanted.faults and found.tokens == wanted.tokens
    for place, row in enumerate(order):
        want = device.rows[row].request.want
        assert abs(found.logprobs[place] - wanted.logprobs[place]) <= _near(wanted.logprobs[place]) or not want.logprobs
        mine, theirs = found.top[place], wanted.top[place]
        assert [token.id for token in mine] == [token.id for token in theirs]
        assert all(abs(a.logprob - b.logprob) <= _near(b.logprob) for a, b in zip(mine, theirs, strict=True))
        device.rows[row].tokens.append(found.tokens[place])
    assert device.newest[device.slots.take([device.rows[row] for row in order], set())].tolist() == found.tokens


def _near(logprob: float) -> float:
    """The rounding of a logprob in float32."""
    return 5e-6 * max(1.0, abs(logprob))


def new_rows(vary: Vary, chance: random.Random, vocab: int, count: int) -> list[RowState]:
    """Rows with prompts in which tokens repeat; some have generated tokens already."""
    rows = []
    for id in range(1, count + 1):
        tokens = [chance.randrange(vocab) for _ in range(chance.randint(1, 12))] * chance.randint(1, 2)
        sampling, want, has_mask = vary(chance, vocab)
        request = Request(id, tuple(tokens), chance.randint(1, len(tokens)), 0, ((id,),), len(tokens), sampling, want, has_mask)
        rows.append(RowState(request, list(tokens), len(tokens), ([id],)))
    return rows
