"""Laying out a step on the host: from rows of the ledger to the words of its inputs, and the bounds beside them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np

from tgi_core.backend.ledger import Work
from tgi_core.engine.ahead.bounds import StepBounds
from tgi_core.engine.ahead.inputs import Counts
from tgi_core.engine.ahead.sampling import uniforms
from tgi_core.engine.ahead.seats import Seats
from tgi_core.engine.runner import prompt_positions


@dataclass(slots=True)
class LaidStep:
    """A step on the host. `order` is that of its flat tokens: single tokens first.

    `plain` are the works whose tokens are chosen on the device, `waiting` those that the host's sampler answers, with the places of
    their logits in `last` (the row's last token, where it yields) and `prompt` (first and count, where the prompt's are asked for).
    Where every row is plain and yields, as in most decode steps, `last` is left empty.
    """

    order: list[Work]
    seats: list[int]
    starts: np.ndarray
    takes: np.ndarray
    plain: list[Work]
    plain_rows: list[int]
    waiting: list[Work]
    last: dict[int, int]
    prompt: dict[int, tuple[int, int]]
    kept: np.ndarray
    """Flat tokens whose logits are wanted."""
    cells: list[int]
    blocks: list[int]
    draws: bool

    @property
    def decodes(self) -> bool:
        """Whether every row runs one token, and none has an adapter: such a step has a fixed shape."""
        return bool((self.takes == 1).all()) and all(work.row.request.adapter is None for work in self.order)

    @property
    def decode_rows(self) -> int:
        """How many rows run one token; they are the first."""
        return int((self.takes == 1).sum())

    @property
    def tokens(self) -> int:
        """How many tokens run."""
        return int(self.takes.sum())


def lay_out(works: Sequence[Work], seats: Seats, live: Set[int], block_size: int) -> LaidStep:
    """Seat the rows, let them reach the blocks they write to, and sort out who is sampled where."""
    order = sorted(works, key=lambda work: (work.take > 1, work.row.request.adapter or ""))
    taken = seats.take([work.row for work in order], live)
    starts = np.fromiter((work.start for work in order), np.int64, len(order))
    takes = np.fromiter((work.take for work in order), np.int64, len(order))
    laid = LaidStep(order, taken, starts, takes, [], [], [], {}, {}, np.zeros(0, np.int64), [], [], False)
    needed = -(-(starts + takes) // block_size)
    for row in np.flatnonzero(needed > seats.reached[taken]).tolist():
        cells, blocks = seats.reach(taken[row], order[row].row.tables[0], int(needed[row]))
        laid.cells += cells
        laid.blocks += blocks
    _sort_out(laid, seats)
    return laid


def _sort_out(laid: LaidStep, seats: Seats) -> None:
    """Which logits are wanted, and for whom."""
    plain = seats.plain[laid.seats]
    laid.draws = bool((plain & (seats.temperatures[laid.seats] > 0)).any())
    if plain.all() and laid.decode_rows == len(laid.order) and all(work.yields for work in laid.order):
        laid.plain, laid.plain_rows = laid.order, list(range(len(laid.order)))
        laid.kept = np.arange(len(laid.order))
        return
    ends = np.cumsum(laid.takes).tolist()
    kept: list[int] = []
    for row, (work, is_plain, end) in enumerate(zip(laid.order, plain.tolist(), ends, strict=True)):
        count = prompt_positions(work)
        first = end - work.take
        if count:
            laid.prompt[work.row.request.id] = (len(kept), count)
            kept += range(first, first + count)
        if not work.yields:
            if work.row.request.want.prompt_logprobs:
                laid.waiting.append(work)
            continue
        if not (count and first + count == end):  # else its last token is among the prompt's already
            kept.append(end - 1)
        laid.last[work.row.request.id] = len(kept) - 1
        if is_plain:
            laid.plain.append(work)
            laid.plain_rows.append(row)
        else:
            laid.waiting.append(work)
    laid.kept = np.array(kept, np.int64)


def exact(laid: LaidStep) -> Counts:
    """The counts of a step that runs as it is."""
    plain, kept = len(laid.plain), len(laid.kept)
    return Counts(
        rows=len(laid.order),
        tokens=laid.tokens,
        plain=plain,
        picked=0 if plain == kept else plain,
        kept=0 if kept == laid.tokens else kept,
        updates=len(laid.cells),
    )


def bounds(laid: LaidStep, seats: Seats, block_size: int) -> StepBounds:
    """The bounds of a step that runs as it is."""
    ends = laid.starts + laid.takes
    width = int(-(-ends.max() // block_size))
    decoding = ends[: laid.decode_rows]
    return StepBounds(
        order=laid.order,
        starts=laid.starts,
        takes=laid.takes,
        tables=seats.tables[laid.seats, :width],
        decode_rows=laid.decode_rows,
        width=width,
        max_length=int(ends.max()),
        equal=bool(laid.decode_rows) and bool((decoding == decoding[0]).all()),
        begins=bool(_begins(laid, block_size).any()),
        every=len(laid.kept) == laid.tokens,
        block_size=block_size,
        fixed=False,
    )


def fill(laid: LaidStep, seats: Seats, into: dict[str, np.ndarray], block_size: int) -> None:
    """Write a step as it is into the views of its words."""
    _fill_tokens(laid, seats, into, block_size)
    _fill_sampling(laid, laid.plain_rows, seats, into)
    if len(into["picked"]):
        into["picked"][:] = [laid.last[work.row.request.id] for work in laid.plain]
    if len(into["kept"]):
        into["kept"][:] = laid.kept


def fill_fixed(laid: LaidStep, seats: Seats, into: dict[str, np.ndarray], block_size: int) -> None:
    """Write a decode step into the views of a fixed shape: every row in its place gets a token, and the places left are nobody's."""
    rows = len(laid.order)
    _fill_tokens(laid, seats, into, block_size)
    _fill_sampling(laid, list(range(rows)), seats, into)
    pad(seats, into, rows, len(laid.cells))


def pad(seats: Seats, into: dict[str, np.ndarray], rows: int, updates: int) -> None:
    """Fill the places behind so many rows and updates: they write nowhere, see nothing, and their tokens are nobody's."""
    for name in ("ids", "positions", "begun", "lengths", "temperatures", "uniforms"):
        into[name][rows:] = 0
    into["slots"][rows:] = -1
    into["seats"][rows:] = into["sampled"][rows:] = seats.padding
    into["cu_seqlens"][rows + 1 :] = np.arange(rows + 1, len(into["cu_seqlens"]))
    into["cells"][updates:] = seats.waste * seats.width
    into["blocks"][updates:] = 0


def _fill_tokens(laid: LaidStep, seats: Seats, into: dict[str, np.ndarray], block_size: int) -> None:
    rows, tokens, taken = len(laid.order), laid.tokens, np.array(laid.seats, np.int64)
    firsts = np.cumsum(laid.takes) - laid.takes
    positions = np.arange(tokens) + np.repeat(laid.starts - firsts, laid.takes)
    owners = np.repeat(taken, laid.takes)
    last = (laid.starts + laid.takes) // block_size
    into["ids"][:tokens] = _ids(laid)
    into["positions"][:tokens] = positions
    into["slots"][:tokens] = seats.tables[owners, positions // block_size] * block_size + positions % block_size
    into["seats"][:rows] = taken
    into["begun"][:rows] = np.where(_begins(laid, block_size), seats.tables[taken, np.minimum(last, seats.width - 1)], 0)
    into["lengths"][:rows] = laid.starts + laid.takes
    into["cu_seqlens"][: rows + 1] = np.append(firsts, tokens)
    into["cells"][: len(laid.cells)] = laid.cells
    into["blocks"][: len(laid.cells)] = laid.blocks


def _ids(laid: LaidStep) -> list[int]:
    """Flat token ids; a token that the host has not read yet is named by its seat."""
    ids: list[int] = []
    for work, seat in zip(laid.order, laid.seats, strict=True):
        tokens = work.row.tokens
        if work.take > 1:
            ids += tokens[work.start : work.start + work.take]
        else:
            ids.append(tokens[work.start] if work.start < len(tokens) else -1 - seat)
    return ids


def _begins(laid: LaidStep, block_size: int) -> np.ndarray:
    """[rows] bool: whether a row enters its last block at the block's first position, and does not fill it."""
    ends = laid.starts + laid.takes
    filled: np.ndarray = (ends % block_size != 0) & (laid.starts <= ends // block_size * block_size)
    return filled


def _fill_sampling(laid: LaidStep, rows: list[int], seats: Seats, into: dict[str, np.ndarray]) -> None:
    """What the device chooses the tokens of these rows by."""
    chosen = np.array([laid.seats[row] for row in rows], np.int64)
    temperatures = seats.temperatures[chosen]
    into["sampled"][: len(rows)] = chosen
    into["temperatures"][: len(rows)] = temperatures
    into["uniforms"][: len(rows)] = 0
    drawing = np.flatnonzero(temperatures > 0).tolist()
    if drawing:
        works = [laid.order[rows[place]] for place in drawing]
        positions = [work.start + work.take for work in works]
        into["uniforms"][drawing] = uniforms([work.row.request.sampling.seed for work in works], positions)
