"""Ragged steps drawn by a seed, and the textbook's answer to them in float32."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tgi_core.engine.attention.metadata import StepArrays
from tgi_core.engine.triton.shape import AttentionShape
from tgi_core.engine.triton.tiles import Tile

FACTORS = {
    "width": [(16, 16), (64, 64), (80, 80), (96, 96), (112, 112), (128, 128), (192, 128), (256, 256)],
    "group": [1, 2, 3, 4, 7, 8, 16],
    "kv_heads": [1, 2],
    "page": [16, 32, 64, 128],
    "window": [None, None, 1, 5, 40],
    "chunk": [None, None, None, 8, 48],
    "softcap": [None, None, 2.0, 30.0],
    "sinks": [False, True],
    "alibi": [False, False, True],
    "dtype": [torch.float32, torch.float16, torch.bfloat16],
    "splits": [1, 2, 5],
    "prefill": [(16, 16), (32, 16), (64, 32), (32, 64)],
    "decode": [(16, 16), (16, 32), (32, 16)],
    "padding": [0, 0, 1, 3],
    "one_loop": [False, True],
}
"""What a case is drawn from."""

TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
"""By how much of its norm a result may differ, by dtype."""


@dataclass(frozen=True)
class RaggedCase:
    """A step of rows (past, take), decode rows first, then `padding` rows of one token and length 0."""

    shape: AttentionShape
    rows: tuple[tuple[int, int], ...]
    padding: int
    dtype: torch.dtype
    splits: int
    prefill: Tile
    decode: Tile
    drawn: dict[str, object] = field(compare=False)

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.drawn.items()) + f", rows {self.rows}"


def draw_case(seed: int) -> RaggedCase:
    """The case of that seed."""
    chance = random.Random(seed)
    drawn = {name: chance.choice(values) for name, values in FACTORS.items()}
    key_width, value_width = drawn["width"]
    names = ("kv_heads", "group", "page", "window", "chunk", "softcap", "sinks", "alibi")
    shape = AttentionShape(key_width=key_width, value_width=value_width, **{name: drawn[name] for name in names})
    page, edge = drawn["page"], chance.choice([-1, 0, 1])
    pasts = [0, chance.randrange(90), max(0, page + edge - 1)]
    decode = [(past, 1) for past in chance.sample(pasts, chance.randint(0, 3))]
    prefill = [(chance.choice(pasts), chance.choice([2, 3, 9, 17, 24])) for _ in range(chance.randint(0 if decode else 1, 2))]
    tiles = [
        Tile(max(drawn[phase][0], 1 << (drawn["group"] - 1).bit_length()), drawn[phase][1], 4, 2, one_loop=drawn["one_loop"])
        for phase in ("prefill", "decode")
    ]
    return RaggedCase(shape, (*decode, *prefill), drawn["padding"], drawn["dtype"], drawn["splits"], *tiles, drawn=drawn)


@dataclass(frozen=True)
class DrawnStep:
    """Tensors of a case: what a kernel is given, and what it should give."""

    arrays: StepArrays
    query: Tensor
    keys: Tensor
    values: Tensor
    sinks: Tensor | None
    slopes: Tensor | None
    scale: float
    expected: Tensor


def draw_step(case: RaggedCase, seed: int) -> DrawnStep:
    """Queries, a cache that holds NaN wherever no row has written, and the expected result."""
    generator, chance, shape = torch.Generator().manual_seed(seed), random.Random(seed), case.shape
    decodes = [row for row in case.rows if row[1] == 1]
    rows = [*decodes, *[(-1, 1)] * case.padding, *[row for row in case.rows if row[1] > 1]]
    lengths = [past + take for past, take in rows]
    needed = [-(-length // shape.page) for length in lengths]
    blocks = list(range(sum(needed) + 1))
    chance.shuffle(blocks)
    tables = torch.full((len(rows), max(needed) + chance.randint(0, 2)), blocks.pop(), dtype=torch.int32)
    keys = torch.full((sum(needed) + 1, shape.page, shape.kv_heads, shape.key_width), torch.nan)
    values = torch.full((*keys.shape[:-1], shape.value_width), torch.nan)
    query = torch.randn(sum(take for _, take in rows), shape.heads, shape.key_width, generator=generator).to(case.dtype)
    sinks = torch.randn(shape.heads, generator=generator) if shape.sinks else None
    slopes = torch.rand(shape.heads, generator=generator) if shape.alibi else None
    scale, expected, first = shape.key_width**-0.5, [], 0
    for row, ((_, take), length, count) in enumerate(zip(rows, lengths, needed, strict=True)):
        tables[row, :count] = torch.tensor([blocks.pop() for _ in range(count)], dtype=torch.int32)
        key, value = (
            torch.randn(length, *cache.shape[2:], generator=generator).to(case.dtype).float() for cache in (keys, values)
        )
        position = torch.arange(length)
        where = (tables[row][position // shape.page].long(), position % shape.page)
        keys[where], values[where] = key, value
        expected.append(textbook(shape, query[first : first + take].float(), key, value, sinks, slopes, scale))
        first += take
    takes = torch.tensor([0, *[take for _, take in rows]])
    arrays = StepArrays(
        cu_seqlens=takes.cumsum(0).int(),
        lengths=torch.tensor(lengths, dtype=torch.int32),
        tables=tables,
        decode_rows=len(decodes) + case.padding,
        max_query=int(takes.max()),
        max_length=max(lengths),
    )
    cache = (keys.to(case.dtype), values.to(case.dtype))
    return DrawnStep(arrays, query.transpose(0, 1), *cache, sinks, slopes, scale, torch.cat(expected))


def textbook(
    shape: AttentionShape, query: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None, slopes: Tensor | None, scale: float
) -> Tensor:
    """Queries [tokens, heads, width], the last of the positions of keys and values [positions, kv_heads, width]."""
    length, take = len(keys), len(query)
    if not length:
        return torch.zeros(take, shape.heads, shape.value_width)
    keys, values = (x.repeat_interleave(shape.group, 1) for x in (keys, values))
    mine, theirs = torch.arange(length - take, length)[:, None], torch.arange(length)[None, :]
    scores = torch.einsum("qhd,khd->hqk", query, keys) * scale
    if shape.softcap is not None:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    if slopes is not None:
        scores = scores + slopes[:, None, None] * (theirs - mine)
    seen = theirs <= mine
    if shape.window is not None:
        seen &= theirs > mine - shape.window
    if shape.chunk is not None:
        seen &= theirs // shape.chunk == mine // shape.chunk
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks[:, None, None].expand(-1, take, 1)), -1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., :length], values)
