"""Sampling of plain rows on the device: the argmax, or a draw at a temperature. Never waits for the device."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from tgi_core.engine.logits_processing import ProcessedInputs
from tgi_core.engine.row_filters import RowFilters
from tgi_core.engine.warping import Candidates

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_DRAWN_AHEAD = 16


class TorchSampler:
    """In torch's operators."""

    name = "torch"
    lean_draws = False
    filters = False
    processes = False

    def __init__(self, precision: torch.dtype = torch.float64) -> None:
        self.precision = precision

    def choose(
        self, logits: Tensor, temperatures: Tensor | None, uniforms: Tensor, filters: RowFilters | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `StepSampler.choose`."""
        scores = logits.float()
        tokens = scores.argmax(-1)
        most = scores.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        finite = torch.isfinite(most) & torch.isfinite(scores.amin(-1))
        logprobs = most - scores.logsumexp(-1)
        if temperatures is not None:
            draws = temperatures > 0
            divisors = torch.where(draws, temperatures, 1).unsqueeze(-1)
            wide = scores.masked_fill(~finite.unsqueeze(-1), 0).to(self.precision)
            drawn, chances = Candidates((wide / divisors).log_softmax(-1), None).choose(uniforms.to(self.precision))
            tokens, logprobs = torch.where(draws, drawn, tokens), torch.where(draws, chances.float(), logprobs)
        return torch.where(finite, tokens, -1), logprobs

    def choose_processed(
        self, logits: Tensor, inputs: ProcessedInputs, counts: Tensor, newest: Tensor, results: Tensor, typical: bool
    ) -> None:
        """None: the host's sampler also uses torch's operators."""
        raise NotImplementedError


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Published uniform numbers of several rows, float32 [rows]: see `tgi_core.backend.sampling.uniform`.

    `seeds` uint64 [rows], see `seed_words`; `positions` [rows].
    """
    seed, position = seeds, positions.astype(np.uint64)
    key0, key1 = seed & _LOW, seed >> _HALF
    c0, c1 = position & _LOW, position >> _HALF
    c2 = c3 = np.zeros_like(c0)
    for _ in range(10):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (product1 >> _HALF) ^ c1 ^ key0, product1 & _LOW, (product0 >> _HALF) ^ c3 ^ key1, product0 & _LOW
        key0, key1 = (key0 + _WEYL[0]) & _LOW, (key1 + _WEYL[1]) & _LOW
    return ((c0 >> np.uint64(8)).astype(np.float64) * 2.0**-24).astype(np.float32)


class UniformsAhead:
    """Uniform numbers of a batch of rows, computed for several positions at a time while the same rows decode: of a few hundred rows, one
    position takes almost as long."""

    def __init__(self) -> None:
        self._seeds, self._temperatures = np.zeros(0, np.uint64), np.zeros(0)
        self._positions = np.zeros(0, np.int64)
        self._ahead = np.zeros((0, 0), np.float32)
        self._used = 0

    def next(self, seeds: np.ndarray, positions: np.ndarray, temperatures: np.ndarray) -> np.ndarray:
        """float32 [rows]: the numbers of the tokens at `positions`, 0 for an argmax. All arguments are [rows]; see `seed_words`."""
        self._used += 1
        if not (
            np.array_equal(self._positions + 1, positions)
            and np.array_equal(self._seeds, seeds)
            and np.array_equal(self._temperatures, temperatures)
        ):
            self._ahead, self._used = _drawn(seeds, positions, temperatures, 1), 0
        elif self._used == len(self._ahead):
            self._ahead, self._used = _drawn(seeds, positions, temperatures, _DRAWN_AHEAD), 0
        self._seeds, self._positions, self._temperatures = seeds, positions, temperatures
        return self._ahead[self._used]


def _drawn(seeds: np.ndarray, positions: np.ndarray, temperatures: np.ndarray, count: int) -> np.ndarray:
    """Numbers float32 [count, rows] of `count` positions from these on, 0 for an argmax."""
    every = (positions + np.arange(count)[:, None]).ravel()
    found = uniforms(np.tile(seeds, count), every).reshape(count, -1)
    return np.where(temperatures > 0, found, np.float32(0))


def seed_words(seeds: Iterable[int]) -> np.ndarray:
    """The 64 bits of seeds, uint64 [rows]."""
    return np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], np.uint64)
