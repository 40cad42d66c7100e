"""Penalties, logit bias and masks on the device; then what was sampled is noted there.

Scores of tokens that a mask or a filter removes are `LOWEST`, whose weight is 0, so that the kernels of `sampling` and `filtering` need not
know about them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_core.engine.logits_processing import IN_PROMPT, ProcessedInputs
from tgi_core.engine.triton.builds import ITEMSIZE, Build
from tgi_core.engine.triton.tiles import TileTable

CHUNK = 4096
"""Logits per program."""

LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The lowest float32."""

_PROMPT = tl.constexpr(IN_PROMPT)
_NOT_FINITE, _UNBOUND, _ALLOWS = tl.constexpr(1), tl.constexpr(2), tl.constexpr(4)
"""Bits of what is said of a chunk of a row."""

_BY_ROW = [
    "places",
    "row_slots",
    "repetitions",
    "frequencies",
    "presences",
    "masked",
    "bias_starts",
    "bias_tokens",
    "biases",
    "bits",
]


@triton.jit(do_not_specialize_on_alignment=_BY_ROW)
def process_kernel(
    logits: tl.tensor,  # [logits, vocabulary], `stride` apart
    places: tl.tensor,  # [rows], int32: which logits are a row's
    row_slots: tl.tensor,  # [rows], int32
    repetitions: tl.tensor,  # [rows], float32, 1 for off
    frequencies: tl.tensor,  # [rows], float32, 0 for off
    presences: tl.tensor,  # [rows], float32, 0 for off
    masked: tl.tensor,  # [rows], int32: which mask is a row's, −1 for none
    bias_starts: tl.tensor,  # [rows + 1], int32: where the biases of a row begin
    bias_tokens: tl.tensor,  # int32
    biases: tl.tensor,  # float32
    bits: tl.tensor,  # [masks, words], int32
    counts: tl.tensor,  # [row slots, vocabulary], int32
    scores: tl.tensor,  # [rows, vocabulary], float32
    said: tl.tensor,  # [rows, chunks], int32
    stride: tl.tensor,
    vocabulary: tl.tensor,
    chunks: tl.tensor,
    words: tl.tensor,
    CHUNK: tl.constexpr,
) -> None:
    """One chunk of one row per program."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = at < vocabulary
    values = tl.load(logits + tl.load(places + row).to(tl.int64) * stride + at, mask=inside, other=0.0).to(tl.float32)
    found = tl.where(tl.min((tl.abs(values) < float("inf")).to(tl.int32), axis=0) == 1, 0, _NOT_FINITE)
    repetition, frequency, presence = tl.load(repetitions + row), tl.load(frequencies + row), tl.load(presences + row)
    if (repetition != 1.0) | (frequency != 0.0) | (presence != 0.0):
        held = tl.load(counts + tl.load(row_slots + row).to(tl.int64) * vocabulary + at, mask=inside, other=0)
        penalized = tl.where(values < 0, values * repetition, tl.div_rn(values, repetition))
        values = tl.where(held != 0, penalized, values)
        made = held & (_PROMPT - 1)
        values = tl.where(made > 0, values - (frequency * made.to(tl.float32) + presence), values)
    for place in range(tl.load(bias_starts + row), tl.load(bias_starts + row + 1)):
        values = tl.where(at == tl.load(bias_tokens + place), values + tl.load(biases + place), values)
    found |= tl.where(tl.min((tl.abs(values) < float("inf")).to(tl.int32), axis=0) == 1, 0, _UNBOUND)
    mask = tl.load(masked + row).to(tl.int64)
    word = tl.load(bits + mask * words + (at >> 5), mask=inside & (mask >= 0), other=-1)
    allowed = ((word >> (at & 31)) & 1) == 1
    found |= tl.where(tl.max((allowed & inside).to(tl.int32), axis=0) == 1, _ALLOWS, 0)
    tl.store(scores + row * vocabulary + at, tl.where(allowed, values, LOWEST), mask=inside)
    tl.store(said + row * chunks + chunk, found)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["row_slots", "counted", "results"])
def note_kernel(
    tokens: tl.tensor,  # [rows], int64
    logprobs: tl.tensor,  # [rows], float32
    said: tl.tensor,
    row_slots: tl.tensor,
    counted: tl.tensor,  # [rows], int32: whether tokens of the row are counted
    newest: tl.tensor,  # [row slots], int64
    counts: tl.tensor,
    results: tl.tensor,  # int32: tokens [rows], then the bits of logprobs [rows]
    rows: tl.tensor,
    vocabulary: tl.tensor,
    chunks: tl.tensor,
    CHUNKS: tl.constexpr,
) -> None:
    """One row per program: the token is the newest of its row slot, and counts there; −1, −2 or −3 says why there is none."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, CHUNKS)
    found = tl.load(said + row * chunks + index, mask=index < chunks, other=0)
    token = tl.load(tokens + row).to(tl.int32)
    token = tl.where(tl.max(found & _ALLOWS, axis=0) == 0, -3, token)
    token = tl.where(tl.max(found & _UNBOUND, axis=0) > 0, -2, token)
    token = tl.where(tl.max(found & _NOT_FINITE, axis=0) > 0, -1, token)
    slot = tl.load(row_slots + row).to(tl.int64)
    made = tl.maximum(token, 0)
    tl.store(newest + slot, made.to(tl.int64))
    if (tl.load(counted + row) != 0) & (token >= 0):
        count = counts + slot * vocabulary + made
        tl.store(count, tl.load(count) + 1)
    tl.store(results + row, token)
    tl.store(results + rows + row, tl.load(logprobs + row).to(tl.int32, bitcast=True))


def launch_process(logits: Tensor, inputs: ProcessedInputs, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Scores float32 [rows, vocabulary], and what is said of their chunks."""
    rows, vocabulary, device = len(inputs.places), logits.shape[-1], logits.device
    chunks = triton.cdiv(vocabulary, CHUNK)
    scores = torch.empty(rows, vocabulary, dtype=torch.float32, device=device)
    said = torch.empty(rows, chunks, dtype=torch.int32, device=device)
    process_kernel[(rows, chunks)](
        logits,
        inputs.places,
        inputs.row_slots,
        inputs.repetition_penalty,
        inputs.frequency_penalty,
        inputs.presence_penalty,
        inputs.masked,
        inputs.bias_starts,
        inputs.bias_tokens,
        inputs.biases,
        inputs.bits,
        counts,
        scores,
        said,
        logits.stride(0),
        vocabulary,
        chunks,
        triton.cdiv(vocabulary, 32),
        CHUNK=CHUNK,
        num_warps=8,
        enable_fp_fusion=False,  # the host rounds after each product
    )
    return scores, said


def launch_note(
    tokens: Tensor, logprobs: Tensor, said: Tensor, inputs: ProcessedInputs, newest: Tensor, counts: Tensor, results: Tensor
) -> None:
    """Note what was sampled, and write tokens and logprobs to `results` int32 [2 · rows]."""
    rows, chunks = said.shape
    sizes = (rows, counts.shape[-1], chunks)
    width = triton.next_power_of_2(chunks)
    state = (inputs.row_slots, inputs.counted, newest, counts, results)
    note_kernel[(rows,)](tokens, logprobs, said, *state, *sizes, CHUNKS=width, num_warps=1)


def builds(tiles: TileTable) -> Iterator[Build]:
    """All dtypes of logits."""
    by_row = dict.fromkeys(_BY_ROW, "*i32") | dict.fromkeys(("repetitions", "frequencies", "presences", "biases"), "*fp32")
    sizes = {"stride": "i32:16", "vocabulary": "i32:16", "chunks": "i32", "words": "i32"}
    state = {"counts": "*i32:16", "scores": "*fp32:16", "said": "*i32:16"}
    for dtype in ITEMSIZE:
        labels = {"kernel": "process", "dtype": dtype}
        types = {"logits": f"*{dtype}:16", **by_row, **state, **sizes}
        yield Build(process_kernel, types, {"CHUNK": CHUNK}, {"num_warps": 8, "enable_fp_fusion": False}, labels)
    types = {"tokens": "*i64:16", "logprobs": "*fp32:16", "said": "*i32:16", "row_slots": "*i32", "counted": "*i32"}
    types |= {"newest": "*i64:16", "counts": "*i32:16", "results": "*i32", "rows": "i32", "vocabulary": "i32:16", "chunks": "i32"}
    yield Build(note_kernel, types, {"CHUNKS": 64}, {"num_warps": 1}, {"kernel": "note", "dtype": "fp32"})
