"""Sampling rows with penalties, biases, masks, typical-p or top tokens on the device, after their step.

A row's tokens are counted on the device, in its row slot: when the row joins, the host says what it has so far; from then on each sampled
token is counted where it is sampled, so that the next step need not wait for the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.ahead.buffer_layout import BufferLayout
from tgi_core.engine.ahead.in_flight import ProcessedRows
from tgi_core.engine.ahead.row_slots import RowSlots
from tgi_core.engine.ahead.sampling import UniformsAhead
from tgi_core.engine.ahead.staging import Staging
from tgi_core.engine.device_queue import DeviceQueue, StepSampler
from tgi_core.engine.logits_processing import IN_PROMPT, MOST_TOP, ProcessedInputs
from tgi_core.engine.row_filters import NEUTRAL, RowFilters

_PRECISE = ("temperatures", "top_p", "min_p", "typical_p")
"""Inputs in the sampler's precision, which come first, so that they are aligned; indices in 64 bits, which torch requires, are next."""

_FLOATS = ("uniforms", "repetition_penalty", "frequency_penalty", "presence_penalty", "biases")

_WORDS = 32
"""About how many words a row takes besides its mask; what it has so far and its biases may take more, once."""

_UNREAD = 4
"""Calls whose inputs and results may be in use: two a step, of which two are on the device."""


class LogitsProcessing:
    """Samples rows from processed logits. `newest` int64 [row slots] are the newest tokens on the device."""

    def __init__(
        self,
        queue: DeviceQueue,
        sampler: StepSampler,
        row_slots: RowSlots,
        newest: Tensor,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._queue, self._sampler, self._row_slots, self._newest = queue, sampler, row_slots, newest
        self._vocab_size, self._device = vocab_size, device
        self._uniforms = UniformsAhead()
        rows = len(newest)
        self._staging = Staging(queue, rows * (_WORDS + -(-vocab_size // 32)), rows * (1 + MOST_TOP), _UNREAD)
        with torch.inference_mode():
            self.counts = torch.zeros(len(newest), vocab_size, dtype=torch.int32, device=device)

    @property
    def num_bytes(self) -> int:
        """Bytes of the counts."""
        return self.counts.numel() * self.counts.itemsize

    def enqueue(
        self,
        logits: Callable[[], Tensor],
        row_inputs: Sequence[RowInput],
        places: Sequence[int],
        taken: np.ndarray,
        masks: bytes = b"",
    ) -> ProcessedRows:
        """Sample rows in the row slots `taken` from the logits at `places`, without waiting. `logits` are there once the work runs. `masks`
        are those of the rows that have one, in order; see `MaskSource`."""
        place = self._staging.next()
        slots = self._row_slots
        positions = np.array([row_input.start + row_input.take for row_input in row_inputs], np.int64)
        most = int(slots.processing["top_n"][taken].max())
        known = self._uncounted(row_inputs, taken, positions)
        biases, cells = int(slots.num_biases[taken].sum()), sum([len(ids) for ids, _ in known.values()])
        layout = _layout(len(row_inputs), self._sampler.precision.itemsize // 4, len(masks) // 4, biases, len(known), cells)
        words = place.inputs(layout.count)
        self._fill(self._host(layout, words), row_inputs, places, taken, positions, masks)
        _fill_counts(layout.host(words), taken, known, self._vocab_size)
        rows = len(row_inputs)
        results = place.results(2 * rows * (1 + most))
        given = place.step = ProcessedRows(row_inputs, most)
        typical = bool((slots.processing["typical_p"][taken] < 1).any())

        @torch.inference_mode()
        def work() -> None:
            inputs = layout.views(words.to(self._device, non_blocking=True))
            if len(inputs["known_slots"]):
                self.counts.index_fill_(0, inputs["known_slots"].view(torch.int64), 0)
                self.counts.view(-1).index_copy_(0, inputs["known_cells"].view(torch.int64), inputs["known"])
            made = torch.empty(len(results), dtype=torch.int32, device=self._device)
            self._sampler.choose_processed(logits(), self._inputs(inputs), self.counts, self._newest, made, typical)
            results.copy_(made, non_blocking=True)

        try:
            self._queue.run(work)
        finally:  # a copy of the inputs may be under way, whatever failed after it
            given.enqueued(self._queue.record(), results)
        slots.counted[taken] = positions + 1
        return given

    def _uncounted(
        self, row_inputs: Sequence[RowInput], taken: np.ndarray, positions: np.ndarray
    ) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Tokens and counts of what rows have so far, by their index, where penalties need it and the device does not have it."""
        found = {}
        for row in np.flatnonzero(self._row_slots.counts[taken] & (self._row_slots.counted[taken] != positions)).tolist():
            state = row_inputs[row].row
            tokens = np.array(state.tokens[: positions[row]], np.int64)
            if len(tokens) < positions[row]:
                raise RuntimeError("the host does not know the tokens of a row")
            found[row] = _counted(tokens, state.request.prompt_len)
        return found

    def _host(self, layout: BufferLayout, words: Tensor) -> dict[str, np.ndarray]:
        views = layout.host(words)
        precise = np.float64 if self._sampler.precision is torch.float64 else np.float32
        return {
            name: view.view(precise if name in _PRECISE else np.float32 if name in _FLOATS else np.int32)
            for name, view in views.items()
        }

    def _inputs(self, views: dict[str, Tensor]) -> ProcessedInputs:
        typed = {
            name: view.view(self._sampler.precision if name in _PRECISE else torch.float32 if name in _FLOATS else torch.int32)
            for name, view in views.items()
            if not name.startswith("known")
        }
        return ProcessedInputs(filters=RowFilters(**{name: typed.pop(name) for name in NEUTRAL}), **typed)

    def _fill(
        self,
        into: dict[str, np.ndarray],
        row_inputs: Sequence[RowInput],
        places: Sequence[int],
        taken: np.ndarray,
        positions: np.ndarray,
        masks: bytes,
    ) -> None:
        slots, temperatures = self._row_slots, self._row_slots.temperatures[taken]
        into["temperatures"][:] = temperatures
        for name, values in (slots.filters | slots.processing).items():
            into[name][:] = values[taken]
        into["uniforms"][:] = self._uniforms.next(slots.seeds[taken], positions, temperatures)
        into["places"][:], into["row_slots"][:], into["counted"][:] = places, taken, slots.counts[taken]
        masked, num_biases = slots.masked[taken], slots.num_biases[taken]
        into["masked"][:] = np.where(masked, np.cumsum(masked) - 1, -1)
        into["bits"][:] = np.frombuffer(masks, "<i4") if masks else 0
        into["bias_starts"][0], into["bias_starts"][1:] = 0, np.cumsum(num_biases)
        biased = [row_inputs[row].row.request.sampling.logit_bias for row in np.flatnonzero(num_biases).tolist()]
        into["bias_tokens"][:] = [token for biases in biased for token, _ in biases]
        into["biases"][:] = [bias for biases in biased for _, bias in biases]


@lru_cache(maxsize=64)
def _layout(rows: int, wide: int, mask_words: int, biases: int, known_rows: int, known_cells: int) -> BufferLayout:
    """The inputs of so many rows. The sampler's precision has `wide` words; counts come of `known_rows` rows with `known_cells` tokens."""
    by_row = ("top_k", "uniforms", "places", "row_slots", "counted", "masked", "top_n")
    return BufferLayout.of(
        **dict.fromkeys(_PRECISE, rows * wide),
        known_slots=2 * known_rows,
        known_cells=2 * known_cells,
        known=known_cells,
        **dict.fromkeys((*by_row, "repetition_penalty", "frequency_penalty", "presence_penalty"), rows),
        bits=max(1, mask_words),
        bias_starts=rows + 1,
        bias_tokens=biases,
        biases=biases,
    )


def _counted(tokens: np.ndarray, prompt_len: int) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of a row and the words of their counts; see `IN_PROMPT`."""
    ids, kinds = np.unique(tokens, return_inverse=True)
    counts = np.bincount(kinds[prompt_len:], minlength=len(ids))
    counts[kinds[:prompt_len]] |= IN_PROMPT
    return ids, counts


def _fill_counts(
    into: dict[str, np.ndarray], taken: np.ndarray, known: Mapping[int, tuple[np.ndarray, np.ndarray]], vocab_size: int
) -> None:
    if known:
        into["known_slots"].view(np.int64)[:] = taken[list(known)]
        into["known_cells"].view(np.int64)[:] = np.concatenate([ids + taken[row] * vocab_size for row, (ids, _) in known.items()])
        into["known"][:] = np.concatenate([counts for _, counts in known.values()])
