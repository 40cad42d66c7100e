"""Typical-p on the device, without sorting the vocabulary.

The filter keeps the tokens whose surprise is nearest to the entropy, of equal distance those with the lowest ids. One program per row finds
the greatest distance that is kept bit by bit, as the largest number below which the tokens do not weigh enough.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_core.engine.triton.builds import Build
from tgi_core.engine.triton.filtering import inverse
from tgi_core.engine.triton.processing import LOWEST
from tgi_core.engine.triton.tiles import TileTable

CHUNK = 2048
"""Scores at a time."""


@triton.jit
def kept_by(values: tl.tensor, at: tl.tensor, lowest: tl.tensor, last: tl.tensor) -> tl.tensor:
    """Whether mask and earlier filters of a row keep tokens with these scores."""
    return (values > LOWEST) & ((values > lowest) | ((values == lowest) & (at <= last)))


@triton.jit
def _surprise(
    scores: tl.tensor,
    at: tl.tensor,
    lowest: tl.tensor,
    last: tl.tensor,
    top: tl.tensor,
    coolness: tl.tensor,
    total: tl.tensor,
    vocabulary: tl.tensor,
) -> tl.tensor:
    """Minus the logarithm of the probabilities of tokens, and whether they are kept so far; `total` is the logarithm of all weights."""
    values = tl.load(scores + at, mask=at < vocabulary, other=LOWEST)
    return total - (values.to(tl.float64) - top) * coolness, kept_by(values, at, lowest, last)


@triton.jit(do_not_specialize_on_alignment=["temperatures", "typical_ps", "cuts", "lasts"])
def typical_kernel(
    scores: tl.tensor,  # [rows, vocabulary], float32; those of dropped tokens become `LOWEST`
    temperatures: tl.tensor,  # [rows], float64, 0 for the argmax
    typical_ps: tl.tensor,  # [rows], float64, 1 for off
    cuts: tl.tensor,  # [rows], float32: the lowest score that earlier filters keep
    lasts: tl.tensor,  # [rows], int32: the last token id with that score that they keep
    vocabulary: tl.tensor,
    CHUNK: tl.constexpr,
) -> None:
    """One row per program."""
    row = tl.program_id(0).to(tl.int64)
    scores += row * vocabulary
    temperature, mass = tl.load(temperatures + row), tl.load(typical_ps + row)
    if (temperature > 0) & (mass < 1):
        coolness, lowest, last = inverse(temperature), tl.load(cuts + row), tl.load(lasts + row)
        peaks = tl.full((CHUNK,), LOWEST, tl.float32)
        for start in range(0, vocabulary, CHUNK):
            at = start + tl.arange(0, CHUNK)
            peaks = tl.maximum(peaks, tl.load(scores + at, mask=at < vocabulary, other=LOWEST))
        top = tl.max(peaks, axis=0).to(tl.float64)
        none = tl.zeros((CHUNK,), tl.float64)
        weights = none
        for start in range(0, vocabulary, CHUNK):
            at = start + tl.arange(0, CHUNK)
            surprise, kept = _surprise(scores, at, lowest, last, top, coolness, none, vocabulary)
            weights += tl.where(kept, tl.exp(-surprise), 0.0)
        total = tl.log(tl.sum(weights, axis=0))
        surprises = none
        for start in range(0, vocabulary, CHUNK):
            at = start + tl.arange(0, CHUNK)
            surprise, kept = _surprise(scores, at, lowest, last, top, coolness, total, vocabulary)
            surprises += tl.where(kept, tl.exp(-surprise) * surprise, 0.0)
        entropy = tl.sum(surprises, axis=0)
        farthest, bit = tl.full((), 0, tl.int64), tl.full((), 1 << 62, tl.int64)  # positive floats are ordered as their bits
        for _ in range(63):
            farther = (farthest | bit).to(tl.float64, bitcast=True)
            nearer = none
            for start in range(0, vocabulary, CHUNK):
                at = start + tl.arange(0, CHUNK)
                surprise, kept = _surprise(scores, at, lowest, last, top, coolness, total, vocabulary)
                nearer += tl.where(kept & (tl.abs(surprise - entropy) < farther), tl.exp(-surprise), 0.0)
            farthest = tl.where(tl.sum(nearer, axis=0) < mass, farthest | bit, farthest)
            bit = bit >> 1
        limit = farthest.to(tl.float64, bitcast=True)
        nearer = none
        for start in range(0, vocabulary, CHUNK):
            at = start + tl.arange(0, CHUNK)
            surprise, kept = _surprise(scores, at, lowest, last, top, coolness, total, vocabulary)
            nearer += tl.where(kept & (tl.abs(surprise - entropy) < limit), tl.exp(-surprise), 0.0)
        before = tl.sum(nearer, axis=0)
        for start in range(0, vocabulary, CHUNK):
            at = start + tl.arange(0, CHUNK)
            surprise, kept = _surprise(scores, at, lowest, last, top, coolness, total, vocabulary)
            distance = tl.abs(surprise - entropy)
            tied = tl.where(kept & (distance == limit), tl.exp(-surprise), 0.0)
            reached = before + tl.cumsum(tied, axis=0) - tied
            typical = kept & ((distance < limit) | ((distance == limit) & (reached < mass)))
            tl.store(scores + at, LOWEST, mask=(at < vocabulary) & (typical == 0))
            before += tl.sum(tied, axis=0)


def launch_typical(scores: Tensor, temperatures: Tensor, typical_p: Tensor, cuts: Tensor, lasts: Tensor) -> None:
    """Set the scores float32 [rows, vocabulary] of tokens that a row's `typical_p` [rows] drops to `LOWEST`; see `typical_kernel`."""
    rows, vocabulary = scores.shape
    typical_kernel[(rows,)](scores, temperatures, typical_p, cuts, lasts, vocabulary, CHUNK=CHUNK, **_options(scores))


def _options(scores: Tensor) -> dict[str, int]:
    nvidia = scores.device.type == "cuda" and torch.version.hip is None
    return {"num_warps": 16} | ({"maxnreg": 128} if nvidia else {})


def builds(tiles: TileTable) -> Iterator[Build]:
    """One."""
    types = {"scores": "*fp32:16", "temperatures": "*fp64", "typical_ps": "*fp64", "cuts": "*fp32:16", "lasts": "*i32:16"}
    options = {"num_warps": 16} | ({"maxnreg": 128} if tiles.chip.startswith("sm_") else {})
    labels = {"kernel": "typical", "dtype": "fp32"}
    yield Build(typical_kernel, {**types, "vocabulary": "i32:16"}, {"CHUNK": CHUNK}, options, labels)
