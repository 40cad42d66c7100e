"""A step that is enqueued, until its results are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import Tensor

from tgi_core.backend import BackendError, TopToken
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.ahead.step_layout import StepLayout
from tgi_core.engine.device_queue import Event
from tgi_core.engine.failures import TORCH_ERRORS
from tgi_core.engine.runner import StepLogits


class InFlight:
    """Work that is enqueued, and writes its results to words of the host."""

    def __init__(self) -> None:
        self._mark: Event | None = None
        self._results: Tensor | None = None
        self._error: Exception | None = None
        self._words = np.zeros(0, np.int32)

    def enqueued(self, mark: Event, results: Tensor) -> None:
        """Record the event after the work, and the words that receive its results."""
        self._mark, self._results = mark, results

    def settle(self) -> None:
        """Wait, and copy the results out of memory that other steps reuse. A failure is kept for `wait`."""
        if self._mark is None or self._results is None:
            return
        try:
            self._mark.wait()
            self._words = self._results.numpy().copy()
        except (BackendError, *TORCH_ERRORS) as error:
            self._error = error
        self._mark = self._results = None

    def wait(self) -> None:
        """Wait until the device has finished. Raises its failure."""
        self.settle()
        if self._error is not None:
            raise self._error

    def words(self) -> np.ndarray:
        """Wait; the results, int32. Raises the failure."""
        self.wait()
        return self._words


class InFlightStep(InFlight):
    """`places` are the plain inputs' indices in the results, by default the first ones; `last` locates rows' logits, as in `StepLayout`."""

    def __init__(self, step: StepLayout, places: Sequence[int] | None, last: Mapping[int, int]) -> None:
        super().__init__()
        self.step, self._places, self.last = step, places, last
        self.logits: Tensor | None = None
        """Logits of rows that are not plain, once the step has run."""
        self.scores: Tensor | None = None
        """Logprobs of the prompt tokens that are scored, once the step has run."""
        self.processed: list[ProcessedRows] = []
        """Rows that the device samples after the step."""
        self.masked: list[RowInput] = []
        """Rows that it samples once `sample_masked` gets their masks."""
        self.sample_masked: Callable[[Sequence[RowInput], bytes], None] | None = None

    def read(self) -> tuple[list[int], list[float]]:
        """Wait; the tokens (−1 if logits were not finite) and the logprobs of the plain row inputs. Raises the step's failure."""
        made, bits = self.words().reshape(2, -1)
        tokens, logprobs = made.tolist(), bits.view(np.float32).tolist()
        if self._places is None:
            count = len(self.step.plain)
            return tokens[:count], logprobs[:count]
        return [tokens[place] for place in self._places], [logprobs[place] for place in self._places]

    def held(self, row_inputs: Sequence[RowInput]) -> StepLogits:
        """The logits of row inputs that the host samples, and the logprobs of their prompts."""
        if self.logits is None:
            raise RuntimeError("the step has not run")
        scores = self.prompt_scores()
        return StepLogits.of(row_inputs, self.logits, self.last, None if scores is None else self.step.scored.by_request(scores))

    def prompt_scores(self) -> Tensor | None:
        """Logprobs float32 [scored] of prompt tokens; None where no prompt is scored."""
        return self.scores


class ProcessedRows(InFlight):
    """Rows that the device samples from processed logits. Of each, `most` top tokens come to the host."""

    def __init__(self, row_inputs: Sequence[RowInput], most: int) -> None:
        super().__init__()
        self.row_inputs, self._most = row_inputs, most

    def read(self) -> tuple[list[int], list[float], list[tuple[TopToken, ...]]]:
        """Wait; tokens (negative: see `StepSampler.choose_processed`), logprobs and top tokens with theirs. Raises the failure."""
        words, rows = self.words(), len(self.row_inputs)
        tokens, bits = words[: 2 * rows].reshape(2, rows)
        top: list[tuple[TopToken, ...]] = [()] * rows
        if self._most:
            top = self._top(words[2 * rows :].reshape(2, rows, self._most))
        return tokens.tolist(), bits.view(np.float32).tolist(), top

    def _top(self, words: np.ndarray) -> list[tuple[TopToken, ...]]:
        """By row, what it asks for of ids and the bits of logprobs [2, rows, most]; −1 where fewer tokens are possible."""
        ids, chances = words
        found = []
        for row_input, row, logprobs in zip(self.row_inputs, ids.tolist(), chances.view(np.float32).tolist(), strict=True):
            asked = row_input.row.request.want.top_n
            found.append(tuple([TopToken(*each) for each in zip(row[:asked], logprobs, strict=False) if each[0] >= 0]))
        return found
