"""Sampling on the device: the argmax, or a draw at a temperature from what filters keep, by the published formula
(`tgi_core.backend.sampling`).

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

from tgi_core.engine.logits_processing import ProcessedInputs
from tgi_core.engine.row_filters import RowFilters
from tgi_core.engine.triton.builds import ITEMSIZE, Build
from tgi_core.engine.triton.filtering import inverse, launch_filter
from tgi_core.engine.triton.processing import launch_note, launch_process
from tgi_core.engine.triton.tiles import TileTable
from tgi_core.engine.triton.top_tokens import launch_top_tokens
from tgi_core.engine.triton.typical import launch_typical

CHUNK = 4096
"""Logits per program."""


@triton.jit(do_not_specialize_on_alignment=["temperatures", "cuts", "lasts"])
def summarize_kernel(
    logits: tl.tensor,  # [rows, vocabulary], `stride` apart
    temperatures: tl.tensor,  # [rows], 0 for the argmax; read where some row DRAWS
    peaks: tl.tensor,  # [rows, chunks], float32: the highest logit
    places: tl.tensor,  # [rows, chunks], int32: its lowest place, or −1 where a logit is not finite
    sums: tl.tensor,  # [rows, chunks], wide: the sum of weights, relative to the highest
    stride: tl.tensor,
    vocabulary: tl.tensor,
    chunks: tl.tensor,
    cuts: tl.tensor,  # [rows], float32: the lowest logit that FILTERS keep
    lasts: tl.tensor,  # [rows], int32: the last token id with that logit that they keep
    CHUNK: tl.constexpr,
    DRAWS: tl.constexpr,
    FILTERS: tl.constexpr,
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
        coolness = inverse(tl.load(temperatures + row).to(wide))
        weights = tl.exp((values.to(wide) - peak.to(wide)) * coolness)
        if FILTERS:
            weights = tl.where(_kept(values, at, cuts + row, lasts + row), weights, 0.0)
        total = tl.sum(weights, axis=0)
    else:
        total = tl.sum(tl.exp(values - peak), axis=0).to(wide)
    to = row * chunks + chunk
    tl.store(peaks + to, peak)
    tl.store(places + to, tl.where(finite == 1, chunk * CHUNK + place, -1))
    tl.store(sums + to, total)


@triton.jit(do_not_specialize_on_alignment=["temperatures", "uniforms", "cuts", "lasts"])
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
    cuts: tl.tensor,
    lasts: tl.tensor,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    DRAWS: tl.constexpr,
    FILTERS: tl.constexpr,
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
        coolness, top = inverse(tl.load(temperatures + row).to(wide)), highest.to(wide)
        weight *= tl.exp((peak.to(wide) - top) * coolness)
        reached = tl.cumsum(weight, axis=0)
        total = tl.sum(weight, axis=0)
        target = tl.load(uniforms + row).to(wide) * total
        chunk = _first(reached > target, weight > 0, index, CHUNKS)
        before = tl.sum(tl.where(index == chunk - 1, reached, 0.0), axis=0)
        offset = tl.arange(0, CHUNK)
        at = chunk * CHUNK + offset
        found = tl.load(logits + row * stride + at, mask=at < vocabulary, other=-float("inf")).to(tl.float32)
        values = found.to(wide)
        weights = tl.exp((values - top) * coolness)
        if FILTERS:
            weights = tl.where(_kept(found, at, cuts + row, lasts + row), weights, 0.0)
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
def _kept(values: tl.tensor, at: tl.tensor, cut: tl.tensor, last: tl.tensor) -> tl.tensor:
    """Whether the filters of a row keep tokens with these logits."""
    lowest = tl.load(cut)
    return (values > lowest) | ((values == lowest) & (at <= tl.load(last)))


@triton.jit
def _first(passed: tl.tensor, possible: tl.tensor, index: tl.tensor, COUNT: tl.constexpr) -> tl.tensor:
    """The first index that is passed and possible; when rounding has left none, the last possible one."""
    found = tl.min(tl.where(passed & possible, index, COUNT), axis=0)
    last = tl.max(tl.where(possible, index, 0), axis=0)
    return tl.minimum(found, last)


class TritonSampler:
    """Chooses tokens of rows that need the argmax, or a draw at a temperature with top-k, top-p and min-p; can be captured. `precision` is
    the dtype of temperatures and of sums of weights."""

    name = "triton"
    lean_draws = True
    filters = True
    processes = True

    def __init__(self, precision: torch.dtype = torch.float64) -> None:
        self.precision = precision

    def choose(
        self, logits: Tensor, temperatures: Tensor | None, uniforms: Tensor, filters: RowFilters | None = None
    ) -> tuple[Tensor, Tensor]:
        """A token per row of logits [rows, vocabulary], int64 [rows], and its logprob, float32 [rows].

        The argmax, of equal ones the lowest id, where the temperature is 0 and everywhere without `temperatures`; elsewhere the draw at
        the row's uniform number (float32 [rows]) from what its filters keep, by the published formula. A row whose logits are not all
        finite has token −1.
        """
        cuts = lasts = None
        if temperatures is not None and filters is not None:
            cuts, lasts = launch_filter(logits, temperatures, filters)
        return self._choose(logits, temperatures, uniforms, cuts, lasts)

    def choose_processed(
        self, logits: Tensor, inputs: ProcessedInputs, counts: Tensor, newest: Tensor, results: Tensor, typical: bool
    ) -> None:
        """See `StepSampler`."""
        scores, said = launch_process(logits, inputs, counts)
        cuts, lasts = launch_filter(scores, inputs.temperatures, inputs.filters)
        if typical:
            launch_typical(scores, inputs.temperatures, inputs.typical_p, cuts, lasts)
        chosen = self._choose(scores, inputs.temperatures, inputs.uniforms, cuts, lasts)
        launch_note(*chosen, said, inputs, newest, counts, results)
        rows = len(scores)
        if len(results) > 2 * rows:
            top = results[2 * rows :].view(2, rows, -1)
            launch_top_tokens(scores, inputs.temperatures, cuts, lasts, inputs.top_n, chosen, top)

    def _choose(
        self, logits: Tensor, temperatures: Tensor | None, uniforms: Tensor, cuts: Tensor | None, lasts: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        (rows, vocabulary), device = logits.shape, logits.device
        chunks = triton.cdiv(vocabulary, CHUNK)
        peaks = torch.empty(rows, chunks, dtype=torch.float32, device=device)
        places = torch.empty(rows, chunks, dtype=torch.int32, device=device)
        sums = torch.empty(rows, chunks, dtype=self.precision, device=device)
        tokens = torch.empty(rows, dtype=torch.int64, device=device)
        logprobs = torch.empty(rows, dtype=torch.float32, device=device)
        found, sizes = (peaks, places, sums), (logits.stride(0), vocabulary, chunks, cuts, lasts)
        options = {"CHUNK": CHUNK, "DRAWS": temperatures is not None, "FILTERS": cuts is not None, "num_warps": 8}
        summarize_kernel[(rows, chunks)](logits, temperatures, *found, *sizes, **options)
        width = triton.next_power_of_2(chunks)
        choose_kernel[(rows,)](logits, temperatures, uniforms, *found, tokens, logprobs, *sizes, CHUNKS=width, **options)
        return tokens, logprobs


_FEATURES = (("fp64", True, False), ("fp32", True, False), ("fp64", True, True), ("fp32", True, True), ("fp32", False, False))
"""Dtypes of sums, whether rows draw, and whether with filters."""


def builds(tiles: TileTable) -> Iterator[Build]:
    """All dtypes with draws in either precision, with filters and without, and without draws."""
    for dtype in ITEMSIZE:
        for wide, draws, filters in _FEATURES:
            drawn = {"temperatures": f"*{wide}", "uniforms": "*fp32"} if draws else {}
            drawn |= {"cuts": "*fp32", "lasts": "*i32"} if filters else {}
            types = {"logits": f"*{dtype}:16", "peaks": "*fp32:16", "places": "*i32:16", "sums": f"*{wide}:16", **drawn}
            types |= {"tokens": "*i64:16", "logprobs": "*fp32:16", "stride": "i32:16", "vocabulary": "i32:16", "chunks": "i32"}
            missing = dict.fromkeys({"temperatures", "uniforms", "cuts", "lasts"} - drawn.keys())
            constants = {"CHUNK": CHUNK, "DRAWS": draws, "FILTERS": filters, **missing}
            feature = f"draws in {wide}{' with filters' if filters else ''}" if draws else "no draws"
            for kernel, name, more in ((summarize_kernel, "summarize", {}), (choose_kernel, "choose", {"CHUNKS": 64})):
                own = {key: value for key, value in (constants | more).items() if key in kernel.arg_names}
                labels = {"kernel": name, "dtype": dtype, "feature": feature}
                yield Build(kernel, types, own, {"num_warps": 8}, labels)
