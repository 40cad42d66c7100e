"""Sampling on the device: the argmax, or a draw at a temperature by the published formula (`tgi_core.backend.sampling`).

The vocabulary is read in chunks, each by a program of its own; then one program per row joins the chunks, and looks into the one chunk
where the draw falls. Weights of a draw are summed in a `precision` that is float64 where the device has it: a cumulative distribution
in float32 would misplace draws among unlikely tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_core.engine.triton.builds import ITEMSIZE, Build
from tgi_core.engine.triton.tiles import TileTable

CHUNK = 4096


@triton.jit(do_not_specialize_on_alignment=["temperatures"])
def summarize_kernel(
    logits: tl.tensor,  # [rows, vocabulary], `stride` apart
    temperatures: tl.tensor,  # [rows], 0 for the argmax; read where some row DRAWS
    peaks: tl.tensor,  # [rows, chunks], float32: the highest logit
    places: tl.tensor,  # [rows, chunks], int32: its lowest place, or −1 where a logit is not finite
    sums: tl.tensor,  # [rows, chunks], wide: the sum of weights, relative to the highest
    stride: tl.tensor,
    vocabulary: tl.tensor,
    chunks: tl.tensor,
    CHUNK: tl.constexpr,
    DRAWS: tl.constexpr,
) -> None:
    """One chunk of one row per program."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    wide: tl.constexpr = sums.dtype.element_ty
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = at < vocabulary
    values = tl.load(logits + row * stride + at, mask=inside, other=-float("inf")).to(tl.float32)
    finite = tl.min(((tl.abs(values) < float("inf")) | (at >= vocabulary)).to(tl.int32), axis=0)
    peak, place = tl.max(values, axis=0, return_indices=True)
    if DRAWS and tl.load(temperatures + row) > 0:
        coolness = _inverse(tl.load(temperatures + row).to(wide))
        total = tl.sum(tl.exp((values.to(wide) - peak.to(wide)) * coolness), axis=0)
    else:
        total = tl.sum(tl.exp(values - peak), axis=0).to(wide)
    to = row * chunks + chunk
    tl.store(peaks + to, peak)
    tl.store(places + to, tl.where(finite == 1, chunk * CHUNK + place, -1))
    tl.store(sums + to, total)


@triton.jit(do_not_specialize_on_alignment=["temperatures", "uniforms"])
def choose_kernel(
    logits: tl.tensor,
    temperatures: tl.tensor,
    uniforms: tl.tensor,  # [rows], float32
    peaks: tl.tensor,
    places: tl.tensor,
    sums: tl.tensor,
    tokens: tl.tensor,  # [rows], int64, −1 where a logit is not finite
    logprobs: tl.tensor,  # [rows], float32
    stride: tl.tensor,
    vocabulary: tl.tensor,
    chunks: tl.tensor,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    DRAWS: tl.constexpr,
) -> None:
    """One row per program."""
    row = tl.program_id(0).to(tl.int64)
    wide: tl.constexpr = sums.dtype.element_ty
    index = tl.arange(0, CHUNKS)
    known = index < chunks
    peak = tl.load(peaks + row * chunks + index, mask=known, other=-float("inf"))
    place = tl.load(places + row * chunks + index, mask=known, other=0)
    weight = tl.load(sums + row * chunks + index, mask=known, other=0.0)
    highest, winner = tl.max(peak, axis=0, return_indices=True)
    if DRAWS and tl.load(temperatures + row) > 0:
        coolness, top = _inverse(tl.load(temperatures + row).to(wide)), highest.to(wide)
        weight *= tl.exp((peak.to(wide) - top) * coolness)
        reached = tl.cumsum(weight, axis=0)
        total = tl.sum(weight, axis=0)
        target = tl.load(uniforms + row).to(wide) * total
        chunk = _first(reached > target, weight > 0, index, CHUNKS)
        before = tl.sum(tl.where(index == chunk - 1, reached, 0.0), axis=0)
        offset = tl.arange(0, CHUNK)
        at = chunk * CHUNK + offset
        values = tl.load(logits + row * stride + at, mask=at < vocabulary, other=-float("inf")).to(tl.float32).to(wide)
        weights = tl.exp((values - top) * coolness)
        drawn = _first(tl.cumsum(weights, axis=0) + before > target, weights > 0, offset, CHUNK)
        token = chunk * CHUNK + drawn
        logit = tl.sum(tl.where(offset == drawn, values, 0.0), axis=0)
        logprob = (logit - top) * coolness - tl.log(total)
    else:
        token = tl.sum(tl.where(index == winner, place, 0), axis=0)
        logprob = -tl.log(tl.sum(weight * tl.exp(peak - highest), axis=0))
    tl.store(tokens + row, tl.where(tl.min(place, axis=0) < 0, -1, token).to(tl.int64))
    tl.store(logprobs + row, logprob.to(tl.float32))


@triton.jit
def _inverse(temperature: tl.tensor) -> tl.tensor:
    """One over a temperature. Logits are multiplied by it, since devices divide 64-bit values in a subroutine that spills registers.

    It is finite for the smallest temperatures too: the highest logit has distance zero from itself, and zero times infinity is NaN.
    """
    greatest = 1.0e300 if temperature.dtype == tl.float64 else 1.0e38
    return tl.minimum(1.0 / temperature, greatest)


@triton.jit
def _first(passed: tl.tensor, possible: tl.tensor, index: tl.tensor, COUNT: tl.constexpr) -> tl.tensor:
    """The first index that is passed and possible; when rounding has left none, the last possible one."""
    found = tl.min(tl.where(passed & possible, index, COUNT), axis=0)
    last = tl.max(tl.where(possible, index, 0), axis=0)
    return tl.minimum(found, last)


class TritonSampler:
    """Chooses plain rows' tokens; can be captured. `precision` is the dtype of temperatures and of sums of weights."""

    name = "triton"
    lean_draws = True

    def __init__(self, precision: torch.dtype = torch.float64) -> None:
        self.precision = precision

    def choose(self, logits: Tensor, temperatures: Tensor | None, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """A token per row of logits [rows, vocabulary], int64 [rows], and its logprob, float32 [rows].

        The argmax, of equal ones the lowest id, where the temperature is 0 and everywhere without `temperatures`; elsewhere the draw at
        the row's uniform number (float32 [rows]) by the published formula. A row whose logits are not all finite has token −1.
        """
        (rows, vocabulary), device = logits.shape, logits.device
        chunks = triton.cdiv(vocabulary, CHUNK)
        peaks = torch.empty(rows, chunks, dtype=torch.float32, device=device)
        places = torch.empty(rows, chunks, dtype=torch.int32, device=device)
        sums = torch.empty(rows, chunks, dtype=self.precision, device=device)
        tokens = torch.empty(rows, dtype=torch.int64, device=device)
        logprobs = torch.empty(rows, dtype=torch.float32, device=device)
        found, sizes = (peaks, places, sums), (logits.stride(0), vocabulary, chunks)
        options = {"CHUNK": CHUNK, "DRAWS": temperatures is not None, "num_warps": 8}
        summarize_kernel[(rows, chunks)](logits, temperatures, *found, *sizes, **options)
        width = triton.next_power_of_2(chunks)
        choose_kernel[(rows,)](logits, temperatures, uniforms, *found, tokens, logprobs, *sizes, CHUNKS=width, **options)
        return tokens, logprobs


def builds(tiles: TileTable) -> Iterator[Build]:
    """All dtypes with draws in either precision, and without draws."""
    for dtype in ITEMSIZE:
        for wide, draws in (("fp64", True), ("fp32", True), ("fp32", False)):
            drawn = {"temperatures": f"*{wide}", "uniforms": "*fp32"} if draws else {}
            types = {"logits": f"*{dtype}:16", "peaks": "*fp32:16", "places": "*i32:16", "sums": f"*{wide}:16", **drawn}
            types |= {"tokens": "*i64:16", "logprobs": "*fp32:16", "stride": "i32:16", "vocabulary": "i32:16", "chunks": "i32"}
            constants = {"CHUNK": CHUNK, "DRAWS": draws, **({} if draws else {"temperatures": None, "uniforms": None})}
            for kernel, name, more in ((summarize_kernel, "summarize", {}), (choose_kernel, "choose", {"CHUNKS": 64})):
                own = {key: value for key, value in (constants | more).items() if key in kernel.arg_names}
                labels = {"kernel": name, "dtype": dtype, "feature": f"draws in {wide}" if draws else "no draws"}
                yield Build(kernel, types, own, {"num_warps": 8}, labels)
