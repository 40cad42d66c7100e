"""Preparing a step on the host: from the tracker's rows to the words of its inputs, and its bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.ahead.bounds import StepBounds
from tgi_core.engine.ahead.inputs import Counts
from tgi_core.engine.ahead.row_slots import RowSlots
from tgi_core.engine.ahead.sampling import uniforms
from tgi_core.engine.row_filters import NEUTRAL
from tgi_core.engine.runner import ScoredPrompts


@dataclass(slots=True)
class StepLayout:
    """A step on the host. `order` is that of its flat tokens: single tokens first.

    `plain` are the inputs that the device samples in the step, `processed` those that it samples after it, `waiting` those that the host
    samples, those with drafts among them. By request, `last`
    has the index of its logits among those of the tokens `kept`, where it yields; those of its drafts follow. Where every row is plain and
    yields, as in most decode steps, `last` is left empty.
    """

    order: list[RowInput]
    row_slots: np.ndarray
    starts: np.ndarray
    takes: np.ndarray
    plain: list[RowInput]
    plain_rows: list[int]
    processed: list[RowInput]
    processed_rows: list[int]
    waiting: list[RowInput]
    last: dict[int, int]
    kept: np.ndarray
    """Flat tokens that are followed by a sampled one."""
    scored: ScoredPrompts
    """Flat tokens that score prompts."""
    cells: list[int]
    blocks: list[int]
    draws: bool
    adapts: bool
    """Whether a row has an adapter."""

    @property
    def decodes(self) -> bool:
        """Whether every row runs one token, and none has an adapter: such a step has a fixed shape."""
        return not self.adapts and bool((self.takes == 1).all())

    @property
    def mixes(self) -> bool:
        """Whether it could run in a mixed graph: no drafts, no adapters, no prompt to score."""
        return not (self.adapts or self.scored.places or any(row_input.drafts for row_input in self.order))

    @property
    def decode_rows(self) -> int:
        """The number of rows that run one token; they come first."""
        return int((self.takes == 1).sum())

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return int(self.takes.sum())


def lay_out_step(row_inputs: Sequence[RowInput], row_slots: RowSlots, live: Set[int], block_size: int) -> StepLayout:
    """Assign row slots, extend rows to the blocks that they write, and divide them between the device's and the host's sampler."""
    order = list(row_inputs)
    adapts = any(row_input.row.request.adapter is not None for row_input in order)
    if adapts or any(row_input.take > 1 for row_input in order):
        order.sort(key=lambda row_input: (row_input.take > 1, not row_input.drafts, row_input.row.request.adapter or ""))
    taken = np.array(row_slots.take([row_input.row for row_input in order], live), np.int64)
    starts = np.array([row_input.start for row_input in order], np.int64)
    takes = np.array([row_input.take for row_input in order], np.int64)
    step = StepLayout(
        order, taken, starts, takes, [], [], [], [], [], {}, np.zeros(0, np.int64), ScoredPrompts(), [], [], False, adapts
    )
    extend_rows(step, row_slots, block_size)
    _sort_out(step, row_slots)
    return step


def extend_rows(step: StepLayout, row_slots: RowSlots, block_size: int) -> None:
    """Extend rows to the blocks that they write in a step."""
    needed = -(-(step.starts + step.takes) // block_size)
    for row in np.flatnonzero(needed > row_slots.reached[step.row_slots]).tolist():
        cells, blocks = row_slots.reach(int(step.row_slots[row]), step.order[row].row.tables[0], int(needed[row]))
        step.cells += cells
        step.blocks += blocks


def _sort_out(step: StepLayout, row_slots: RowSlots) -> None:
    """Find the tokens that need logits, and which sampler gets them."""
    plain = row_slots.plain[step.row_slots]
    step.draws = bool((plain & (row_slots.temperatures[step.row_slots] > 0)).any())
    if plain.all() and step.decode_rows == len(step.order) and all(row_input.yields for row_input in step.order):
        step.plain, step.plain_rows = step.order, list(range(len(step.order)))
        step.kept = np.arange(len(step.order))
        return
    processed = row_slots.processed[step.row_slots].tolist()
    kept = list[int]()
    ends = np.cumsum(step.takes).tolist()
    for row, (row_input, is_plain, end) in enumerate(zip(step.order, plain.tolist(), ends, strict=True)):
        step.scored.add(row_input, end - row_input.take)
        if row_input.yields:
            step.last[row_input.row.request.id] = len(kept)
            kept += range(end - 1 - len(row_input.drafts), end)
        if row_input.yields and is_plain and not row_input.drafts:
            step.plain.append(row_input)
            step.plain_rows.append(row)
        elif row_input.yields and processed[row] and not row_input.drafts:
            step.processed.append(row_input)
            step.processed_rows.append(row)
        elif row_input.yields or row_input.row.request.want.prompt_logprobs:
            step.waiting.append(row_input)
    step.kept = np.array(kept, np.int64)


def exact(step: StepLayout) -> Counts:
    """The counts of a step that is not padded."""
    plain, kept = len(step.plain), len(step.kept)
    return Counts(
        rows=len(step.order),
        tokens=step.tokens,
        plain=plain,
        picked=0 if plain == kept else plain,
        kept=0 if kept == step.tokens else kept,
        updates=len(step.cells),
        scored=len(step.scored.places),
    )


def bounds(step: StepLayout, row_slots: RowSlots, block_size: int) -> StepBounds:
    """The bounds of a step that is not padded."""
    ends = step.starts + step.takes
    width = int(-(-ends.max() // block_size))
    decoding = ends[: step.decode_rows]
    return StepBounds(
        order=step.order,
        starts=step.starts,
        takes=step.takes,
        tables=row_slots.tables[step.row_slots, :width],
        decode_rows=step.decode_rows,
        width=width,
        max_length=int(ends.max()),
        equal=bool(step.decode_rows) and bool((decoding == decoding[0]).all()),
        begins=bool(_begins(step.starts, step.takes, block_size).any()),
        every=len(step.kept) == step.tokens,
        block_size=block_size,
        fixed=False,
    )


def fill(step: StepLayout, row_slots: RowSlots, into: dict[str, np.ndarray], block_size: int) -> None:
    """Write a step that is not padded to the views of its words."""
    _fill_tokens(step, row_slots, into, block_size, np.arange(len(step.order)))
    into["cu_seqlens"][:] = np.append(np.cumsum(step.takes) - step.takes, step.tokens)
    chosen = np.array(step.plain_rows, np.int64)
    _fill_sampling(step, chosen, row_slots, into, np.arange(len(chosen)))
    if len(into["picked"]):
        into["picked"][:] = [step.last[row_input.row.request.id] for row_input in step.plain]
    if len(into["kept"]):
        into["kept"][:] = step.kept
    into["scored"][:], into["following"][:] = step.scored.places, step.scored.following


def fill_fixed(
    step: StepLayout, row_slots: RowSlots, into: dict[str, np.ndarray], block_size: int, decode_rows: int
) -> np.ndarray:
    """Write a step to the views of a fixed shape with room for so many rows of one token, and pad the rest. Returns the rows' indices."""
    pad(row_slots, into, decode_rows)
    few = step.decode_rows
    gap = decode_rows - few if few < len(step.order) else 0
    rows = np.arange(len(step.order))
    rows[few:] += gap
    tokens = np.arange(step.tokens)
    tokens[few:] += gap
    _fill_tokens(step, row_slots, into, block_size, rows, tokens if gap else None)
    ends = decode_rows + np.cumsum(step.takes[few:])
    into["cu_seqlens"][decode_rows + 1 :] = ends[-1] if len(ends) else decode_rows
    into["cu_seqlens"][decode_rows + 1 : decode_rows + 1 + len(ends)] = ends
    if len(into["kept"]):
        into["kept"][:decode_rows] = np.arange(decode_rows)
        into["kept"][decode_rows : decode_rows + len(ends)] = ends - 1
    _fill_sampling(step, np.arange(len(rows)), row_slots, into, rows)
    return rows


def pad(row_slots: RowSlots, into: dict[str, np.ndarray], decode_rows: int) -> None:
    """Write a step of a fixed shape without rows: padding writes nothing, attends to nothing, and its tokens are discarded."""
    for name in ("ids", "positions", "begun", "lengths", "temperatures", "uniforms", "kept"):
        into[name][:] = 0
    for name, neutral in NEUTRAL.items():
        into[name][:] = neutral
    into["slots"][:] = -1
    into["row_slots"][:] = into["sampled"][:] = row_slots.padding
    into["cu_seqlens"][:] = np.minimum(np.arange(len(into["cu_seqlens"])), decode_rows)
    clear_updates(row_slots, into)


def clear_updates(row_slots: RowSlots, into: dict[str, np.ndarray]) -> None:
    """Write a step of a fixed shape that changes no table."""
    into["cells"][:], into["blocks"][:] = row_slots.waste * row_slots.width, 0


def fill_decode(
    step: StepLayout, row_slots: RowSlots, into: dict[str, np.ndarray], block_size: int, drawn: np.ndarray | None
) -> None:
    """Write a decode step over the words of an earlier one of the same rows, sampled on the device; see `fill_fixed`. `drawn` float32
    [rows] are uniform numbers, if some row draws."""
    count, taken, ends = len(step.order), step.row_slots, step.starts + step.takes
    blocks, offsets = np.divmod(step.starts, block_size)
    into["positions"][:count] = step.starts
    into["slots"][:count] = row_slots.tables[taken, blocks] * block_size + offsets
    into["begun"][:count] = _begun(taken, step.starts, step.takes, row_slots, block_size)
    into["lengths"][:count] = ends
    _fill_updates(step, into)
    if drawn is not None:
        into["uniforms"][:count] = drawn


def _fill_tokens(
    step: StepLayout,
    row_slots: RowSlots,
    into: dict[str, np.ndarray],
    block_size: int,
    rows: np.ndarray,
    tokens: np.ndarray | None = None,
) -> None:
    """Write the tokens of rows to the indices `rows`, and to the flat `tokens`, or one after another."""
    taken = step.row_slots
    fill_flat(step.order, taken, step.starts, step.takes, row_slots, block_size, into, tokens, rows)
    into["row_slots"][rows] = taken
    into["lengths"][rows] = step.starts + step.takes
    _fill_updates(step, into)


def _fill_updates(step: StepLayout, into: dict[str, np.ndarray]) -> None:
    """Write a step's changes of tables."""
    into["cells"][: len(step.cells)] = step.cells
    into["blocks"][: len(step.cells)] = step.blocks


def fill_flat(
    row_inputs: Sequence[RowInput],
    taken: np.ndarray,
    starts: np.ndarray,
    takes: np.ndarray,
    row_slots: RowSlots,
    block_size: int,
    into: Mapping[str, np.ndarray],
    places: np.ndarray | None = None,
    rows: np.ndarray | None = None,
) -> None:
    """Write flat tokens: `takes` of each work from position `starts` on, of rows in the row slots `taken`; to `places`, and what is said
    of rows to `rows`, or one after another."""
    positions = np.arange(takes.sum()) + np.repeat(starts - (np.cumsum(takes) - takes), takes)
    owners = np.repeat(taken, takes)
    where = slice(len(positions)) if places is None else places
    into["ids"][where] = _ids(row_inputs, taken, starts, takes, row_slots)
    into["positions"][where] = positions
    into["slots"][where] = row_slots.tables[owners, positions // block_size] * block_size + positions % block_size
    into["begun"][slice(len(row_inputs)) if rows is None else rows] = _begun(taken, starts, takes, row_slots, block_size)


def _ids(
    row_inputs: Sequence[RowInput], taken: np.ndarray, starts: np.ndarray, takes: np.ndarray, row_slots: RowSlots
) -> np.ndarray | list[int]:
    """Flat token ids; one that the device sampled is given by its row slot."""
    on_device = row_slots.newest_on_device[taken] & (takes == 1)
    if on_device.all():
        found: np.ndarray = -1 - taken
        return found
    ids: list[int] = []
    each = zip(row_inputs, taken.tolist(), starts.tolist(), takes.tolist(), on_device.tolist(), strict=True)
    for row_input, row_slot, start, take, known in each:
        tokens = row_input.row.tokens
        if known:
            ids.append(-1 - row_slot)
        elif take > 1 + len(row_input.drafts):
            ids += tokens[start : start + take]
        else:
            ids.append(tokens[start] if start < len(tokens) else -1 - row_slot)
            ids += row_input.drafts
    return ids


def _begun(taken: np.ndarray, starts: np.ndarray, takes: np.ndarray, row_slots: RowSlots, block_size: int) -> np.ndarray:
    """[rows]: the block that a row begins and does not fill, or the null block."""
    blocks = row_slots.tables[taken, np.minimum((starts + takes) // block_size, row_slots.width - 1)]
    found: np.ndarray = np.where(_begins(starts, takes, block_size), blocks, 0)
    return found


def _begins(starts: np.ndarray, takes: np.ndarray, block_size: int) -> np.ndarray:
    """[rows] bool: whether a row begins its last block and does not fill it."""
    ends = starts + takes
    filled: np.ndarray = (ends % block_size != 0) & (starts <= ends // block_size * block_size)
    return filled


def _fill_sampling(
    step: StepLayout, rows: np.ndarray, row_slots: RowSlots, into: dict[str, np.ndarray], places: np.ndarray
) -> None:
    """Write the sampling inputs of these rows of the step to `places`."""
    chosen = step.row_slots[rows]
    temperatures = row_slots.temperatures[chosen]
    into["sampled"][places] = chosen
    into["temperatures"][places] = temperatures
    for name, values in row_slots.filters.items():
        into[name][places] = values[chosen]
    into["uniforms"][places] = 0
    drawing = np.flatnonzero(temperatures > 0)
    if len(drawing):
        positions = (step.starts + step.takes)[rows][drawing]
        into["uniforms"][places[drawing]] = uniforms(row_slots.seeds[chosen[drawing]], positions)
