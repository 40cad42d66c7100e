"""Row slots: a live row has the same slot on the device from its first step to its last, while batches change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set

import numpy as np

from tgi_core.backend.batch_tracker import RowState
from tgi_core.engine.ahead.sampling import seed_words
from tgi_core.engine.logits_processing import PROCESSING, needs_counts, processing
from tgi_core.engine.row_filters import NEUTRAL, row_filters


class RowSlots:
    """Slots 0…max_rows − 1, and the host's state of them in arrays by slot.

    Two more belong to no row: `padding`, whose table is always empty, and `waste`, for discarded writes.
    """

    def __init__(
        self,
        max_rows: int,
        width: int,
        vocab_size: int,
        samples: Callable[[RowState], bool],
        processes: Callable[[RowState], bool] = lambda row: False,
    ) -> None:
        """`samples` says whether the device samples a row in its step, `processes` whether it does after it, from processed logits."""
        self.padding, self.waste, self.width = max_rows, max_rows + 1, width
        self._vocab_size = vocab_size
        self._samples, self._processes = samples, processes
        self._by_request: dict[int, int] = {}
        self._owners: list[RowState | None] = [None] * max_rows
        self._free = list(range(max_rows))
        self.tables = np.zeros((max_rows + 2, width), np.int32)
        """The tables as they are on the device once every step launched so far has run."""
        self.reached = np.zeros(max_rows + 2, np.int64)
        """Blocks of its table that a row has reached."""
        self._stale = np.zeros(max_rows + 2, np.int64)
        """Cells that may be nonzero on the device."""
        self.plain = np.zeros(max_rows + 2, bool)
        """Whether a row is sampled on the device, in its step."""
        self.processed = np.zeros(max_rows + 2, bool)
        """Whether it is sampled there from processed logits."""
        self.processing = {name: np.full(max_rows + 2, neutral, np.float64) for name, neutral in PROCESSING.items()}
        self.masked = np.zeros(max_rows + 2, bool)
        """Whether its tokens are masked."""
        self.num_biases = np.zeros(max_rows + 2, np.int64)
        """How many tokens have a logit bias."""
        self.counts = np.zeros(max_rows + 2, bool)
        """Whether penalties need counts of its tokens."""
        self.counted = np.full(max_rows + 2, -1, np.int64)
        """How many of its tokens the device has counted, −1 for an unknown number."""
        self.temperatures = np.zeros(max_rows + 2, np.float64)
        self.filters = {name: np.full(max_rows + 2, neutral, np.float64) for name, neutral in NEUTRAL.items()}
        self.seeds = np.zeros(max_rows + 2, np.uint64)
        self.newest_on_device = np.zeros(max_rows + 2, bool)
        """Whether the newest token of a row is the one that the device sampled last in its slot."""

    def take(self, rows: Iterable[RowState], live: Set[int]) -> list[int]:
        """The slots of rows; new rows get free ones."""
        known, owners = self._by_request, self._owners
        return [
            found if (found := known.get(row.request.id)) is not None and owners[found] is row else self._assign(row, found, live)
            for row in rows
        ]

    def of(self, rows: Iterable[RowState]) -> np.ndarray:
        """The slots of rows that have one, int64."""
        return np.array([self._by_request[row.request.id] for row in rows], np.int64)

    def _assign(self, row: RowState, held: int | None, live: Set[int]) -> int:
        """Give a row a free slot, or the one `held` by an earlier row of the same id."""
        if held is None:
            if not self._free:
                gone = [id for id in self._by_request if id not in live]
                self._free += [self._by_request.pop(id) for id in gone]
            held = self._by_request[row.request.id] = self._free.pop()
        row_slot, sampling = held, row.request.sampling
        self._owners[row_slot] = row
        self.reached[row_slot] = 0
        self.plain[row_slot] = self._samples(row) and not row.request.want.prompt_logprobs
        self.temperatures[row_slot] = sampling.temperature if sampling.do_sample else 0.0
        for name, value in row_filters(sampling, self._vocab_size).items():
            self.filters[name][row_slot] = value
        self.processed[row_slot] = not self.plain[row_slot] and self._processes(row)
        for name, value in processing(row).items():
            self.processing[name][row_slot] = value
        self.masked[row_slot], self.num_biases[row_slot] = row.request.masked, len(sampling.logit_bias)
        self.counts[row_slot], self.counted[row_slot] = needs_counts(sampling), -1
        self.seeds[row_slot] = seed_words([sampling.seed])[0]
        self.newest_on_device[row_slot] = False
        return row_slot

    def reach(self, row_slot: int, table: list[int], count: int) -> tuple[list[int], list[int]]:
        """Extend a row to `count` blocks of its table: the flat cells to change on the device, and their new blocks.

        Later cells that held another row's blocks are cleared: a row must not see another row's blocks.
        """
        first, stale = int(self.reached[row_slot]), int(self._stale[row_slot])
        blocks = table[first:count] + [0] * (stale - count)
        end = max(count, stale)
        self.tables[row_slot, first:end] = blocks
        self.reached[row_slot] = self._stale[row_slot] = count
        return list(range(row_slot * self.width + first, row_slot * self.width + end)), blocks

    def note_sampled(self, row_slots: np.ndarray, on_device: Sequence[int]) -> None:
        """Record a step of rows in these slots, of which the device samples those at the indices `on_device`."""
        self.newest_on_device[row_slots] = False
        self.newest_on_device[row_slots[on_device]] = True

    def forget(self, row_slots: np.ndarray) -> None:
        """Mark what the device holds for these slots as unknown: the step that wrote to them failed."""
        self._stale[row_slots] = self.width
        self.counted[row_slots] = -1
        self.newest_on_device[row_slots] = False
