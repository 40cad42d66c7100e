"""Top-k, top-p and min-p on the device, without sorting the vocabulary.

In the order of descending logits, equal ones by token id, each of these filters keeps a head, and so do all three together. A head is
given by the lowest logit that it holds, `cut`, and by the last token id of that logit. One program per row finds the cut bit by bit, as
the largest number from which on enough tokens, or enough weight, are left: a pass over the row for each bit.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_core.engine.row_filters import RowFilters
from tgi_core.engine.triton.builds import ITEMSIZE, Build
from tgi_core.engine.triton.tiles import TileTable

CHUNK_BYTES = 16384
"""Bytes of logits at a time."""
_TIES = 512
"""Tokens at a time where equal logits are counted in order, which takes more registers."""
_BITS = {torch.bfloat16: 16, torch.float16: 19, torch.float32: 32}
"""The bits of a float32 that a number of each dtype can set, from the highest on."""


@triton.jit
def inverse(temperature: tl.tensor) -> tl.tensor:
    """One over a temperature. Logits are multiplied by it, since devices divide 64-bit values in a subroutine that spills registers.

    It is finite for the smallest temperatures too: the highest logit has distance zero from itself, and zero times infinity is NaN.
    """
    greatest = 1.0e300 if temperature.dtype == tl.float64 else 1.0e38
    return tl.minimum(1.0 / temperature, greatest)


@triton.jit
def _ranked(logits: tl.tensor, at: tl.tensor, vocabulary: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """Logits, float32, and numbers of BITS bits, uint32, in the same order; 0 outside of the vocabulary."""
    inside = at < vocabulary
    values = tl.load(logits + at, mask=inside, other=0.0).to(tl.float32) + 0.0  # one zero, not two
    bits = values.to(tl.uint32, bitcast=True)
    rank = tl.where(bits >> 31 == 1, bits ^ 0xFFFFFFFF, bits | 0x80000000) >> (32 - BITS)
    return values, tl.where(inside, rank, 0)


@triton.jit
def _count(logits: tl.tensor, least: tl.tensor, vocabulary: tl.tensor, CHUNK: tl.constexpr, BITS: tl.constexpr) -> tl.tensor:
    """How many tokens have at least this rank."""
    found = tl.zeros((CHUNK,), tl.int32)
    for start in range(0, vocabulary, CHUNK):
        _, rank = _ranked(logits, start + tl.arange(0, CHUNK), vocabulary, BITS)
        found += (rank >= least).to(tl.int32)
    return tl.sum(found, axis=0)


@triton.jit
def _weight(
    logits: tl.tensor,
    least: tl.tensor,
    top: tl.tensor,
    coolness: tl.tensor,
    vocabulary: tl.tensor,
    CHUNK: tl.constexpr,
    BITS: tl.constexpr,
) -> tl.tensor:
    """The weight of the tokens of at least this rank, relative to that of the highest logit."""
    found = tl.zeros((CHUNK,), coolness.dtype)
    for start in range(0, vocabulary, CHUNK):
        values, rank = _ranked(logits, start + tl.arange(0, CHUNK), vocabulary, BITS)
        found += tl.where(rank >= least, tl.exp((values.to(coolness.dtype) - top) * coolness), 0.0)
    return tl.sum(found, axis=0)


@triton.jit
def _cut_at_count(
    logits: tl.tensor, count: tl.tensor, vocabulary: tl.tensor, CHUNK: tl.constexpr, BITS: tl.constexpr
) -> tl.tensor:
    """The highest rank that at least `count` tokens reach."""
    cut, bit = tl.full((), 0, tl.uint32), tl.full((), 1 << (BITS - 1), tl.uint32)
    for _ in range(BITS):
        higher = cut | bit
        bit = bit >> 1
        cut = tl.where(_count(logits, higher, vocabulary, CHUNK, BITS) >= count, higher, cut)
    return cut


@triton.jit
def _cut_at_weight(
    logits: tl.tensor,
    target: tl.tensor,
    lower: tl.tensor,
    top: tl.tensor,
    coolness: tl.tensor,
    vocabulary: tl.tensor,
    CHUNK: tl.constexpr,
    BITS: tl.constexpr,
) -> tl.tensor:
    """The highest rank, at least `lower`, from which on tokens weigh at least `target`."""
    cut, bit = tl.full((), 0, tl.uint32), tl.full((), 1 << (BITS - 1), tl.uint32)
    for _ in range(BITS):
        higher = cut | bit
        bit = bit >> 1
        enough = _weight(logits, higher, top, coolness, vocabulary, CHUNK, BITS) >= target
        cut = tl.where(enough | (higher <= lower), higher, cut)
    return cut


@triton.jit
def _lowest_likely(
    logits: tl.tensor,
    share: tl.tensor,
    top: tl.tensor,
    coolness: tl.tensor,
    vocabulary: tl.tensor,
    CHUNK: tl.constexpr,
    BITS: tl.constexpr,
) -> tl.tensor:
    """The lowest rank whose tokens are at least `share` times as likely as the most likely one."""
    floor = tl.full((CHUNK,), 0xFFFFFFFF, tl.uint32)
    for start in range(0, vocabulary, CHUNK):
        values, rank = _ranked(logits, start + tl.arange(0, CHUNK), vocabulary, BITS)
        likely = (rank > 0) & (tl.exp((values.to(coolness.dtype) - top) * coolness) >= share)
        floor = tl.minimum(floor, tl.where(likely, rank, 0xFFFFFFFF))
    return tl.min(floor, axis=0)


@triton.jit(do_not_specialize_on_alignment=["temperatures", "top_ks", "top_ps", "min_ps"])
def filter_kernel(
    logits: tl.tensor,  # [rows, vocabulary], `stride` apart
    temperatures: tl.tensor,  # [rows], 0 for the argmax
    top_ks: tl.tensor,  # [rows], int32, 0 for off
    top_ps: tl.tensor,  # [rows], 1 for off
    min_ps: tl.tensor,  # [rows], 0 for off
    cuts: tl.tensor,  # [rows], float32: the lowest logit that is kept
    lasts: tl.tensor,  # [rows], int32: the last token id with that logit that is kept
    stride: tl.tensor,
    vocabulary: tl.tensor,
    CHUNK: tl.constexpr,
    TIES: tl.constexpr,
    BITS: tl.constexpr,
) -> None:
    """One row per program."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    temperature, count = tl.load(temperatures + row), tl.load(top_ks + row)
    mass, share = tl.load(top_ps + row), tl.load(min_ps + row)
    value, last = tl.full((), -float("inf"), tl.float32), vocabulary
    if (temperature > 0) & ((count > 0) | (mass < 1) | (share > 0)):
        coolness = inverse(temperature)
        peaks = tl.full((CHUNK,), -float("inf"), tl.float32)
        for start in range(0, vocabulary, CHUNK):
            values, rank = _ranked(logits, start + tl.arange(0, CHUNK), vocabulary, BITS)
            peaks = tl.maximum(peaks, tl.where(rank > 0, values, -float("inf")))
        top = tl.max(peaks, axis=0).to(coolness.dtype)
        cut, kept = tl.full((), 0, tl.uint32), vocabulary  # rank 0 is no token's
        if count > 0:
            cut = _cut_at_count(logits, count, vocabulary, CHUNK, BITS)
            kept = count - _count(logits, cut + 1, vocabulary, CHUNK, BITS)
        if mass < 1:
            above = _weight(logits, cut + 1, top, coolness, vocabulary, CHUNK, BITS)
            each = tl.exp((_value(logits, cut, vocabulary, CHUNK, BITS).to(coolness.dtype) - top) * coolness)
            target = mass * (above + tl.where(cut > 0, each * kept, 0.0))
            lower, cut = cut, _cut_at_weight(logits, target, cut, top, coolness, vocabulary, CHUNK, BITS)
            above = _weight(logits, cut + 1, top, coolness, vocabulary, CHUNK, BITS)
            distance = (_value(logits, cut, vocabulary, CHUNK, BITS).to(coolness.dtype) - top) * coolness
            needed = tl.ceil((target - above) * tl.exp(-distance))  # a 64-bit division would spill registers
            needed = tl.minimum(tl.maximum(needed - 1.0, 1.0), vocabulary)  # the product may be one too high
            needed = tl.where(above + needed * tl.exp(distance) < target, needed + 1.0, needed).to(tl.int32)
            kept = tl.where(cut > lower, needed, tl.minimum(needed, kept))
        if share > 0:
            lowest = _lowest_likely(logits, share, top, coolness, vocabulary, CHUNK, BITS)
            kept = tl.where(lowest > cut, vocabulary, kept)
            cut = tl.maximum(cut, lowest)
        value = _value(logits, cut, vocabulary, CHUNK, BITS)
        last = _last(logits, cut, kept, vocabulary, TIES, BITS)
    tl.store(cuts + row, value)
    tl.store(lasts + row, last)


@triton.jit
def _value(logits: tl.tensor, cut: tl.tensor, vocabulary: tl.tensor, CHUNK: tl.constexpr, BITS: tl.constexpr) -> tl.tensor:
    """The logit of that rank; minus infinity if no token has it."""
    found = tl.full((CHUNK,), -float("inf"), tl.float32)
    for start in range(0, vocabulary, CHUNK):
        values, rank = _ranked(logits, start + tl.arange(0, CHUNK), vocabulary, BITS)
        found = tl.maximum(found, tl.where(rank == cut, values, -float("inf")))
    return tl.max(found, axis=0)


@triton.jit
def _last(
    logits: tl.tensor, cut: tl.tensor, kept: tl.tensor, vocabulary: tl.tensor, CHUNK: tl.constexpr, BITS: tl.constexpr
) -> tl.tensor:
    """The token id of the `kept`th token of that rank; the size of the vocabulary if there are fewer."""
    last, before = vocabulary, tl.full((), 0, tl.int32)
    for start in range(0, vocabulary, CHUNK):
        at = start + tl.arange(0, CHUNK)
        _, rank = _ranked(logits, at, vocabulary, BITS)
        tied = ((rank == cut) & (at < vocabulary)).to(tl.int32)
        reached = before + tl.cumsum(tied, axis=0)
        last = tl.minimum(last, tl.min(tl.where((tied == 1) & (reached == kept), at, vocabulary), axis=0))
        before += tl.sum(tied, axis=0)
    return last


def launch_filter(logits: Tensor, temperatures: Tensor, filters: RowFilters) -> tuple[Tensor, Tensor]:
    """By row of logits [rows, vocabulary]: the lowest logit that is kept, float32, and the last token id of that logit, int32.

    A row without filters keeps everything: minus infinity. `temperatures` [rows], 0 for the argmax, have the dtype that weights are
    summed in.
    """
    rows, vocabulary = logits.shape
    cuts = torch.empty(rows, dtype=torch.float32, device=logits.device)
    lasts = torch.empty(rows, dtype=torch.int32, device=logits.device)
    filter_kernel[(rows,)](
        logits,
        temperatures,
        filters.top_k,
        filters.top_p,
        filters.min_p,
        cuts,
        lasts,
        logits.stride(0),
        vocabulary,
        CHUNK=CHUNK_BYTES // logits.element_size(),
        TIES=_TIES,
        BITS=_BITS[logits.dtype],
        **_options(logits.device.type == "cuda" and torch.version.hip is None),
    )
    return cuts, lasts


def _options(nvidia: bool) -> dict[str, int]:
    """NVIDIA's compiler spills registers here for more programs per multiprocessor, unless it is told how many to use."""
    return {"num_warps": 16} | ({"maxnreg": 128} if nvidia else {})


def builds(tiles: TileTable) -> Iterator[Build]:
    """All dtypes, with weights in either precision."""
    bits, options = {"bf16": 16, "fp16": 19, "fp32": 32}, _options(tiles.chip.startswith("sm_"))
    for dtype in ITEMSIZE:
        constants = {"CHUNK": CHUNK_BYTES // ITEMSIZE[dtype], "TIES": _TIES, "BITS": bits[dtype]}
        for wide in ("fp64", "fp32"):
            types = {
                "logits": f"*{dtype}:16",
                "temperatures": f"*{wide}",
                "top_ks": "*i32",
                "top_ps": f"*{wide}",
                "min_ps": f"*{wide}",
            }
            types |= {"cuts": "*fp32:16", "lasts": "*i32:16", "stride": "i32:16", "vocabulary": "i32:16"}
            labels = {"kernel": "filter", "dtype": dtype, "feature": f"weights in {wide}"}
            yield Build(filter_kernel, types, constants, options, labels)
