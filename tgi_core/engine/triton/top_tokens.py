"""The likeliest tokens of rows on the device, with their logprobs."""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl
from torch import Tensor

from tgi_core.engine.triton.builds import Build
from tgi_core.engine.triton.filtering import inverse
from tgi_core.engine.triton.processing import LOWEST
from tgi_core.engine.triton.tiles import TileTable
from tgi_core.engine.triton.typical import kept_by

CHUNK = 4096
"""Scores at a time."""


@triton.jit(
    do_not_specialize=["most"], do_not_specialize_on_alignment=["temperatures", "cuts", "lasts", "counts", "ids", "found"]
)
def top_tokens_kernel(
    scores: tl.tensor,  # [rows, vocabulary], float32
    temperatures: tl.tensor,  # [rows], 0 for the argmax
    cuts: tl.tensor,  # [rows], float32: the lowest score that filters keep
    lasts: tl.tensor,  # [rows], int32: the last token id with that score that they keep
    counts: tl.tensor,  # [rows], int32: how many tokens are asked for
    tokens: tl.tensor,  # [rows], int64: what was sampled
    logprobs: tl.tensor,  # [rows], float32: its logprob
    ids: tl.tensor,  # [rows, most], int32; −1 where fewer are possible
    found: tl.tensor,  # [rows, most], int32: the bits of their logprobs
    vocabulary: tl.tensor,
    most: tl.tensor,
    CHUNK: tl.constexpr,
) -> None:
    """One row per program: by descending score, of equal ones the lowest id first."""
    row = tl.program_id(0).to(tl.int64)
    scores += row * vocabulary
    temperature, lowest, last = tl.load(temperatures + row), tl.load(cuts + row), tl.load(lasts + row)
    coolness = tl.where(temperature > 0, inverse(tl.where(temperature > 0, temperature, 1.0)), 1.0)
    chosen = tl.load(scores + tl.maximum(tl.load(tokens + row), 0)).to(coolness.dtype)
    logprob = tl.load(logprobs + row).to(coolness.dtype)
    value, id = tl.full((), float("inf"), tl.float32), tl.full((), -1, tl.int32)
    for place in range(tl.load(counts + row)):
        best = tl.full((CHUNK,), LOWEST, tl.float32)
        where = tl.full((CHUNK,), 0, tl.int32) + vocabulary
        for start in range(0, vocabulary, CHUNK):
            at = start + tl.arange(0, CHUNK)
            values = tl.load(scores + at, mask=at < vocabulary, other=LOWEST)
            after = (values < value) | ((values == value) & (at > id))
            better = after & kept_by(values, at, lowest, last) & (values > best)
            best, where = tl.where(better, values, best), tl.where(better, at, where)
        value = tl.max(best, axis=0)
        id = tl.min(tl.where(best == value, where, vocabulary), axis=0)
        to = row * most + place
        tl.store(ids + to, tl.where(value > LOWEST, id, -1))
        difference = (logprob + (value.to(coolness.dtype) - chosen) * coolness).to(tl.float32)
        tl.store(found + to, difference.to(tl.int32, bitcast=True))


def launch_top_tokens(
    scores: Tensor,
    temperatures: Tensor,
    cuts: Tensor,
    lasts: Tensor,
    counts: Tensor,
    chosen: tuple[Tensor, Tensor],
    results: Tensor,
) -> None:
    """Write the `counts` [rows] likeliest tokens of scores float32 [rows, vocabulary] to `results` int32 [2, rows, most]: ids, then the
    bits of their logprobs. `chosen` are the tokens that were sampled, int64, and their logprobs."""
    (rows, vocabulary), most = scores.shape, results.shape[-1]
    top_tokens_kernel[(rows,)](
        scores, temperatures, cuts, lasts, counts, *chosen, results[0], results[1], vocabulary, most, CHUNK=CHUNK, num_warps=8
    )


def builds(tiles: TileTable) -> Iterator[Build]:
    """Draws in either precision."""
    types = {"scores": "*fp32:16", "cuts": "*fp32:16", "lasts": "*i32:16", "counts": "*i32", "tokens": "*i64:16"}
    types |= {"logprobs": "*fp32:16", "ids": "*i32", "found": "*i32", "vocabulary": "i32:16", "most": "i32"}
    for wide in ("fp64", "fp32"):
        labels = {"kernel": "top tokens", "dtype": "fp32", "feature": f"draws in {wide}"}
        yield Build(top_tokens_kernel, {**types, "temperatures": f"*{wide}"}, {"CHUNK": CHUNK}, {"num_warps": 8}, labels)
