"""Which experts each token runs, and the order in which they run them.

Nothing here waits for the device, and grids follow from the number of tokens, so that a captured step can be replayed with other choices.
The order is a counting sort: the program of an expert counts everybody's tokens, and then writes where its own are. Each expert's tokens
fill whole blocks of a GEMM, the last of which is filled up with a number that stands for no token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_core.engine.experts import NOT_ZERO, Chosen, Routing
from tgi_core.engine.triton.builds import ITEMSIZE, Build
from tgi_core.engine.triton.tiles import TileTable

BLOCK_ROWS = (16, 64, 128)
"""Rows of a block, by the number of tokens."""

CHUNK = 1024
"""Choices that a program looks at at a time."""

_OWNERS = 32
"""Blocks whose owner a program writes at a time."""


@triton.jit
def _limited(
    scores: tl.tensor,
    number: tl.tensor,
    EXPERTS: tl.constexpr,
    GROUPS: tl.constexpr,
    KEPT_GROUPS: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
) -> tl.tensor:
    """Scores with −∞ in the groups that are not kept. A group counts as much as its best expert, or with PAIRS as its best two."""
    SIZE: tl.constexpr = EXPERTS // GROUPS
    place = tl.arange(0, BLOCK_GROUPS)
    ranks = tl.full((BLOCK_GROUPS,), -float("inf"), tl.float32)
    for group in range(GROUPS):
        own = tl.where(number // SIZE == group, scores, -float("inf"))
        most = tl.max(own, axis=0)
        if PAIRS:
            best = tl.min(tl.where(own == most, number, BLOCK), axis=0)
            most += tl.max(tl.where(number == best, -float("inf"), own), axis=0)
        ranks = tl.where(place == group, most, ranks)
    kept = number < 0
    for _ in range(KEPT_GROUPS):
        most = tl.max(ranks, axis=0)
        best = tl.minimum(tl.min(tl.where(ranks == most, place, BLOCK_GROUPS), axis=0), GROUPS - 1)
        kept = kept | (number // SIZE == best)
        ranks = tl.where(place == best, -float("inf"), ranks)
    return tl.where(kept, scores, -float("inf"))


@triton.jit
def route_kernel(
    logits: tl.tensor,  # [tokens, LOGITS]
    correction: tl.tensor,  # float32 [EXPERTS], or None
    ids: tl.tensor,  # int32 [tokens, TOP + SHARED]
    weights: tl.tensor,  # float32, the same
    LOGITS: tl.constexpr,
    EXPERTS: tl.constexpr,
    TOP: tl.constexpr,
    SHARED: tl.constexpr,
    NORMALIZED: tl.constexpr,
    SIGMOID: tl.constexpr,
    GROUPS: tl.constexpr,
    KEPT_GROUPS: tl.constexpr,
    SCALE: tl.constexpr,
    NOT_ZERO: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_CHOSEN: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
) -> None:
    """One token per program."""
    token = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, BLOCK)
    values = tl.load(logits + token * LOGITS + number, mask=number < EXPERTS, other=-float("inf")).to(tl.float32)
    if SIGMOID:
        shares = tl.sigmoid(values)
    else:
        shares = tl.exp(values - tl.max(values, axis=0))
        shares = shares / tl.sum(shares, axis=0)
    scores = shares
    if correction is not None:
        scores += tl.load(correction + number, mask=number < EXPERTS, other=0.0)
    scores = tl.where(number < EXPERTS, scores, -float("inf"))
    if KEPT_GROUPS < GROUPS:
        scores = _limited(scores, number, EXPERTS, GROUPS, KEPT_GROUPS, SIGMOID, BLOCK, BLOCK_GROUPS)
    place = tl.arange(0, BLOCK_CHOSEN)
    chosen = tl.zeros((BLOCK_CHOSEN,), tl.int32)
    weight = tl.zeros((BLOCK_CHOSEN,), tl.float32)
    for turn in range(TOP):
        most = tl.max(scores, axis=0)
        # Numbers that are not finite equal nothing; some expert must run the token all the same, and its row fails later.
        best = tl.minimum(tl.min(tl.where(scores == most, number, BLOCK), axis=0), EXPERTS - 1)
        chosen = tl.where(place == turn, best, chosen)
        weight = tl.where(place == turn, tl.sum(tl.where(number == best, shares, 0.0), axis=0), weight)
        scores = tl.where(number == best, -float("inf"), scores)
    if SIGMOID:
        # One number that is not finite makes all weights so, as in a softmax.
        weight += 0.0 * tl.sum(tl.where(number < EXPERTS, shares, 0.0), axis=0)
    if NORMALIZED:
        weight /= tl.sum(weight, axis=0) + NOT_ZERO
    weight *= SCALE
    if SHARED > 0:
        own = 1.0
        if LOGITS > EXPERTS:
            own = tl.sigmoid(tl.load(logits + token * LOGITS + EXPERTS).to(tl.float32))
        chosen = tl.where(place >= TOP, EXPERTS + place - TOP, chosen)
        weight = tl.where(place >= TOP, own, weight)
    to = token * (TOP + SHARED) + place
    tl.store(ids + to, chosen, mask=place < TOP + SHARED)
    tl.store(weights + to, weight, mask=place < TOP + SHARED)


@triton.jit(do_not_specialize=["choices", "blocks"])
def sort_kernel(
    ids: tl.tensor,  # int32 [choices]
    order: tl.tensor,  # int32 [blocks · ROWS]: choices by expert; `choices` where there is none
    owners: tl.tensor,  # int32 [blocks]: the expert of each block, −1 for none
    choices: tl.tensor,
    blocks: tl.tensor,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,  # more than EXPERTS
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    OWNERS: tl.constexpr,
) -> None:
    """One expert per program."""
    expert = tl.program_id(0)
    number = tl.arange(0, BLOCK)
    at = tl.arange(0, CHUNK)
    counts = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, choices, CHUNK):
        # What is beyond the last choice counts for nobody: the number after the last expert.
        counts += tl.histogram(tl.load(ids + first + at, mask=first + at < choices, other=EXPERTS), BLOCK)
    needed = tl.where(number < EXPERTS, (counts + ROWS - 1) // ROWS, 0)
    begin = tl.sum(tl.where(number < expert, needed, 0), axis=0)
    end = begin + tl.sum(tl.where(number == expert, needed, 0), axis=0)
    owned = tl.arange(0, OWNERS)
    for block in range(begin, end, OWNERS):
        tl.store(owners + block + owned, expert, mask=block + owned < end)
    if expert == EXPERTS - 1:
        for block in range(end, blocks, OWNERS):
            tl.store(owners + block + owned, -1, mask=block + owned < blocks)
    place = begin * ROWS
    for first in range(0, choices, CHUNK):
        mine = tl.load(ids + first + at, mask=first + at < choices, other=EXPERTS) == expert
        before = tl.cumsum(mine.to(tl.int32), axis=0)
        tl.store(order + place + before - 1, first + at, mask=mine)
        place += tl.sum(mine.to(tl.int32), axis=0)
    rest = place + tl.arange(0, ROWS)
    tl.store(order + rest, choices, mask=rest < end * ROWS)


@dataclass(frozen=True, slots=True)
class Order:
    """Choices by expert, in `blocks` blocks of `rows`; see `sort_kernel`."""

    order: Tensor
    owners: Tensor
    blocks: int
    rows: int


def launch_route(logits: Tensor, routing: Routing, correction: Tensor | None = None) -> Chosen:
    """Experts from logits [tokens, routing.logits], contiguous; see `experts.route`."""
    tokens, device = logits.shape[0], logits.device
    ids = torch.empty(tokens, routing.chosen, dtype=torch.int32, device=device)
    weights = torch.empty(tokens, routing.chosen, dtype=torch.float32, device=device)
    if tokens:
        route_kernel[(tokens,)](logits, correction, ids, weights, **_route_constants(routing), num_warps=1)
    return Chosen(ids, weights)


def _route_constants(routing: Routing) -> dict[str, int | float | bool]:
    return {
        "LOGITS": routing.logits,
        "EXPERTS": routing.experts,
        "TOP": routing.top,
        "SHARED": routing.shared,
        "NORMALIZED": routing.normalized,
        "SIGMOID": routing.sigmoid,
        "GROUPS": routing.groups,
        "KEPT_GROUPS": routing.kept_groups,
        "SCALE": routing.scale,
        "NOT_ZERO": NOT_ZERO if routing.sigmoid else 0.0,
        "BLOCK": triton.next_power_of_2(routing.experts),
        "BLOCK_CHOSEN": triton.next_power_of_2(routing.chosen),
        "BLOCK_GROUPS": triton.next_power_of_2(routing.groups),
    }


def launch_sort(ids: Tensor, experts: int, rows: int) -> Order:
    """The order of choices, int32 [tokens, chosen], for a GEMM that takes `rows` at a time."""
    choices = ids.numel()
    # However they are divided: each expert that has some fills up one block at most.
    blocks = (choices + min(choices, experts) * (rows - 1)) // rows
    order, owners = (torch.empty(size, dtype=torch.int32, device=ids.device) for size in (blocks * rows, blocks))
    sort_kernel[(experts,)](ids, order, owners, choices, blocks, **_sort_constants(experts, rows), num_warps=4)
    return Order(order, owners, blocks, rows)


def _sort_constants(experts: int, rows: int) -> dict[str, int]:
    return {
        "EXPERTS": experts,
        "BLOCK": triton.next_power_of_2(experts + 1),
        "ROWS": rows,
        "CHUNK": CHUNK,
        "OWNERS": _OWNERS,
    }


_BUILT = {
    "8 experts": Routing(8, 2, True),
    "60 experts, shared": Routing(60, 4, False, 4, True),
    "256 experts, shared": Routing(256, 8, True, 1),
    "160 experts in groups": Routing(160, 6, False, 2, groups=8, kept_groups=3, scale=16.0),
    "256 experts, sigmoid": Routing(256, 8, True, 1, sigmoid=True, groups=8, kept_groups=4, scale=2.5),
    "384 experts, sigmoid": Routing(384, 8, True, 1, sigmoid=True, scale=2.827),
}


def builds(tiles: TileTable) -> Iterator[Build]:
    """The experts of some models."""
    for feature, routing in _BUILT.items():
        for dtype in ITEMSIZE:
            types = {"logits": f"*{dtype}:16", "ids": "*i32:16", "weights": "*fp32:16"}
            constants: dict[str, object] = {**_route_constants(routing)}
            if routing.sigmoid:
                types["correction"] = "*fp32:16"
            else:
                constants["correction"] = None
            labels = {"kernel": "route", "dtype": dtype, "feature": feature}
            yield Build(route_kernel, types, constants, {"num_warps": 1}, labels)
        types = dict.fromkeys(("ids", "order", "owners"), "*i32:16") | dict.fromkeys(("choices", "blocks"), "i32")
        for rows in BLOCK_ROWS:
            labels = {"kernel": "sort", "feature": feature, "width": f"{rows} rows"}
            yield Build(sort_kernel, types, _sort_constants(routing.experts + routing.shared, rows), {"num_warps": 4}, labels)
