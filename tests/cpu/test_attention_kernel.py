"""Native attention over the paged cache against float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from tgi_backend_cpu.attention import NATIVE_CACHES, NativeAttention, NativeLayer
from tgi_backend_cpu.kernels import Kernels
from torch import Tensor

from tgi_core.backend import Request
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.attention.cache import LayerShape
from tgi_core.engine.attention.interface import AttentionParameters, KeyBias
from tgi_core.engine.attention.metadata import build

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
BYTES = list(NATIVE_CACHES)


@dataclass
class Case:
    """One layer and rows of (past, take); what each row's keys, values and queries are."""

    heads: int
    kv_heads: int
    size: int
    block_size: int
    dtype: torch.dtype
    rows: list[tuple[int, int]]
    seed: int = 0
    kept: torch.dtype | None = None
    """The cache's dtype, if it is another one."""

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)

        def numbers(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(self.dtype)

        self.keys = [numbers(past + take, self.kv_heads, self.size) for past, take in self.rows]
        self.values = [numbers(past + take, self.kv_heads, self.size) for past, take in self.rows]
        self.queries = [numbers(past + take, self.heads, self.size) for past, take in self.rows]

    def run(self, kernels: Kernels, how: AttentionParameters, rows: list[int] | None = None) -> list[Tensor]:
        """Attention [take, heads, size] of each of the chosen rows, in one step over a cache full of NaN."""
        chosen = list(range(len(self.rows))) if rows is None else rows
        provider = NativeAttention(kernels, "")
        needed = [-(-sum(self.rows[i]) // self.block_size) for i in chosen]
        layer = provider.new_layer(
            LayerShape(self.kv_heads, self.size, self.size), sum(needed), self.block_size, self.kept or self.dtype, CPU
        )
        poison(layer)
        free = torch.randperm(sum(needed), generator=torch.Generator().manual_seed(1)).add(1).tolist()
        row_inputs = []
        for id, (i, count) in enumerate(zip(chosen, needed, strict=True)):
            past, take = self.rows[i]
            table = [free.pop() for _ in range(count)]
            slots = torch.tensor(
                [table[p // self.block_size] * self.block_size + p % self.block_size for p in range(past + take)]
            )
            for part in (slice(0, past), slice(past, past + take)):
                layer.write(slots[part], self.keys[i][part].transpose(0, 1), self.values[i][part].transpose(0, 1))
            request = Request(id, (0,) * (past + take), past + take, 0, (tuple(table),), take)
            row_inputs.append(RowInput(RowState(request, [0] * (past + take), past, (table,)), past, take, True))
        step = build(row_inputs, self.block_size, CPU)
        order = [row_inputs.index(row_input) for row_input in step.order]
        query = torch.cat([self.queries[chosen[i]][self.rows[chosen[i]][0] :] for i in order]).transpose(0, 1)
        parts = provider.attend(query, layer, step, how).split([self.rows[chosen[i]][1] for i in order])
        return [parts[order.index(i)] for i in range(len(chosen))]

    def wanted(self, row: int, how: AttentionParameters) -> Tensor:
        """The same in float64."""
        past, take = self.rows[row]
        group = self.heads // self.kv_heads
        kept = (x[row].double() if self.kept is None else rounded(x[row], self.kept) for x in (self.keys, self.values))
        keys, values = (x.repeat_interleave(group, 1).transpose(0, 1) for x in kept)
        scores = self.queries[row][past:].double().transpose(0, 1) @ keys.transpose(1, 2) * how.scaling
        if how.softcap is not None:
            scores = torch.tanh(scores / how.softcap) * how.softcap
        if how.bias is not None:
            scores = scores + how.bias.table[:, None, : past + take].double()
        at, seen = torch.arange(past, past + take).unsqueeze(1), torch.arange(past + take).unsqueeze(0)
        hidden = seen > at
        if how.window is not None:
            hidden |= seen <= at - how.window
        return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values).transpose(0, 1)


def rounded(x: Tensor, kept: torch.dtype) -> Tensor:
    """Heads [..., size] as integers of eight bits, or as normal numbers of e4m3fn, times a scale each, in float64."""
    top = x.float().abs().amax(-1, keepdim=True)
    most = torch.full_like(top, 127 if kept is torch.int8 else torch.finfo(torch.float8_e4m3fn).max)
    scaled = x.float() * (most / top)
    if kept is torch.int8:
        stored = scaled.round()
    else:
        least = torch.finfo(torch.float8_e4m3fn).smallest_normal
        below = torch.where(scaled.abs() >= least / 2, least * scaled.sign(), 0.0)
        stored = torch.where(scaled.abs() < least, below, scaled.to(torch.float8_e4m3fn).float())
    return stored.double() * (top / most).double()


def poison(layer: NativeLayer) -> None:
    """Leave NaN everywhere, as a faulted row might."""
    import ctypes

    ctypes.memset(layer.memory.address, 0xFF, layer.memory.size)


RAGGED = [(0, 1), (0, 5), (15, 1), (16, 1), (14, 3), (0, 40), (255, 1), (256, 1), (250, 20), (700, 1), (3, 300)]
"""(past, take): edges of pages and of chunks, single tokens and long parts."""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "block_size"),
    [(3, 1, 64, 16), (4, 4, 32, 32), (8, 2, 80, 16), (16, 1, 128, 64), (6, 2, 256, 16), (2, 1, 16, 16), (5, 1, 96, 128)],
)
def test_ragged_rows(kernels: Kernels, dtype: torch.dtype, heads: int, kv_heads: int, size: int, block_size: int) -> None:
    """Head sizes and groups of all kinds, decode and prefill rows mixed; what other rows left in a page is never seen."""
    case = Case(heads, kv_heads, size, block_size, dtype, RAGGED, seed=size)
    how = AttentionParameters(size**-0.5)
    for row, found in enumerate(case.run(kernels, how)):
        assert error(found, case.wanted(row, how)) < (1e-5 if dtype is torch.float32 else 2e-2), RAGGED[row]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "block_size"), [(3, 1, 64, 16), (8, 2, 80, 32), (2, 1, 16, 16), (5, 1, 512, 128)]
)
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("kept", BYTES, ids=str)
def test_a_cache_of_eight_bits(
    kernels: Kernels,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    size: int,
    block_size: int,
    window: int | None,
    kept: torch.dtype,
) -> None:
    """It holds keys and values rounded with a scale per position and head; nothing else is rounded further. Some are very small."""
    case = Case(heads, kv_heads, size, block_size, dtype, RAGGED, seed=size, kept=kept)
    for row in case.keys + case.values:
        row[..., ::4] *= 3e-5
    how = AttentionParameters(size**-0.5, window=window, softcap=None if window is None else 3.0)
    for row, found in enumerate(case.run(kernels, how)):
        assert error(found, case.wanted(row, how)) < (1e-5 if dtype is torch.float32 else 2e-2), RAGGED[row]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kept", BYTES, ids=str)
def test_a_rewritten_position_leaves_nothing(kernels: Kernels, dtype: torch.dtype, kept: torch.dtype) -> None:
    """A draft of large numbers that is rejected, and then overwritten, changes nothing of what follows, nor of its neighbours."""
    case, how = Case(4, 2, 32, 16, dtype, [(20, 1), (21, 3)], kept=kept), AttentionParameters(0.2)
    drafted = Case(4, 2, 32, 16, dtype, case.rows, kept=kept)
    expected = case.run(kernels, how)
    for part in (drafted.keys, drafted.values):
        for row, (past, _) in enumerate(case.rows):
            part[row][past - 5 : past] *= 1000
    write, provider = NativeLayer.write, NativeAttention(kernels, "")
    layer = provider.new_layer(LayerShape(2, 32, 32), 4, 16, kept, CPU)
    poison(layer)
    found = []
    for row, (past, take) in enumerate(case.rows):
        table = (1 + 2 * row, 2 + 2 * row)
        slots = torch.tensor([table[p // 16] * 16 + p % 16 for p in range(past + take)])
        for keys, values in ((drafted.keys[row], drafted.values[row]), (case.keys[row], case.values[row])):
            for part in (slice(0, past - 5), slice(past - 5, past), slice(past, past + take)):
                write(layer, slots[part], keys[part].transpose(0, 1), values[part].transpose(0, 1))
        request = Request(row, (0,) * (past + take), past + take, 0, (table,), take)
        step = build([RowInput(RowState(request, [0] * (past + take), past, (table,)), past, take, True)], 16, CPU)
        found.append(provider.attend(case.queries[row][past:].transpose(0, 1), layer, step, how))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("window", "softcap"), [(1, None), (7, None), (16, 3.0), (300, None), (None, 2.0)])
def test_windows_and_soft_caps(kernels: Kernels, dtype: torch.dtype, window: int | None, softcap: float | None) -> None:
    """A window hides what lies before it, a soft cap bends the scores."""
    case, how = Case(6, 2, 32, 16, dtype, RAGGED), AttentionParameters(0.4, window=window, softcap=softcap)
    for row, found in enumerate(case.run(kernels, how)):
        assert error(found, case.wanted(row, how)) < (1e-5 if dtype is torch.float32 else 2e-2), RAGGED[row]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kept", [None, *BYTES], ids=str)
@pytest.mark.parametrize("size", [32, 80])
def test_biases_of_keys(kernels: Kernels, dtype: torch.dtype, kept: torch.dtype | None, size: int) -> None:
    """Each query head adds its own bias per position, of any shape; the table may end with the longest row, in the middle of a page.
    Scores of several hundred have fewer bits left for differences."""
    case, steps = Case(6, 2, size, 16, dtype, RAGGED, kept=kept), torch.arange(701).float()
    table = torch.stack([slope * steps + (steps % 7 - steps[0] % 7) for slope in (0.5, -0.2, 0.0, 0.03, 1.0, 0.25)])
    for bias in (KeyBias.of(table), KeyBias.of(table * 0.1).heads(0, 6)):
        how = AttentionParameters(0.3, bias=bias)
        for row, found in enumerate(case.run(kernels, how)):
            assert error(found, case.wanted(row, how)) < (1e-4 if dtype is torch.float32 else 2e-2), RAGGED[row]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("kept", [None, *BYTES], ids=str)
def test_bits_depend_on_the_row_alone(kernels: Kernels, dtype: torch.dtype, window: int | None, kept: torch.dtype | None) -> None:
    """A query's bits are the same alone, beside others, as the end of a long prompt and as a single token that threads share."""
    whole = Case(6, 2, 64, 16, dtype, [(0, 1100), (40, 9), (600, 1)], kept=kept)
    how = AttentionParameters(0.125, window=window)
    together = whole.run(kernels, how)
    for row in range(3):
        assert torch.equal(whole.run(kernels, how, [row])[0], together[row])
    for past in (1099, 800, 511, 256, 17):
        part = Case(6, 2, 64, 16, dtype, [(past, 1)], kept=kept)
        part.keys, part.values, part.queries = ([x[0][: past + 1]] for x in (whole.keys, whole.values, whole.queries))
        assert torch.equal(part.run(kernels, how)[0][0], together[0][past])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kept", [None, *BYTES], ids=str)
def test_what_is_no_number_shows(kernels: Kernels, dtype: torch.dtype, kept: torch.dtype | None) -> None:
    """A key or a value that is NaN reaches every query of its row that sees it, and no other row."""
    for part in ("keys", "values"):
        case = Case(4, 2, 32, 16, dtype, [(0, 20), (3, 30)], kept=kept)
        getattr(case, part)[0][7, 1, 5] = float("nan")
        first, second = case.run(kernels, AttentionParameters(0.2))
        assert first[7:, 2:].isnan().any(-1).all()
        assert not first[:, :2].isnan().any() and not second.isnan().any()


def test_what_it_cannot_serve_is_named(kernels: Kernels) -> None:
    """Layers with sinks, chunks or uneven heads are left to another provider, with a reason."""
    provider, plain = NativeAttention(kernels, ""), AttentionParameters(1.0)
    shape = LayerShape(2, 64, 64)
    assert provider.probe() == provider.refusal([shape], [plain], torch.bfloat16) == ""
    for other, how, dtype, word in (
        (LayerShape(2, 64, 48), plain, torch.float32, "48"),
        (LayerShape(2, 20, 20), plain, torch.float32, "20"),
        (shape, AttentionParameters(1.0, chunk=8), torch.float32, "chunks"),
        (shape, AttentionParameters(1.0, sinks=torch.zeros(4)), torch.float32, "sinks"),
        (shape, plain, torch.float16, "float16"),
    ):
        assert word in provider.refusal([other], [how], dtype)
    assert NativeAttention(None, "no compiler").probe() == "no compiler"


def error(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, by the size of what is wanted where that is above 1."""
    return float(((found.double() - wanted).abs() / wanted.abs().clamp_min(1.0)).max())
