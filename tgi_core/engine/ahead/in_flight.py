"""A step that is enqueued, until its results are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from tgi_core.backend import BackendError
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.ahead.step_layout import StepLayout
from tgi_core.engine.device_queue import Event
from tgi_core.engine.failures import TORCH_ERRORS
from tgi_core.engine.runner import StepLogits


class InFlightStep:
    """`places` are the plain inputs' indices in the results, by default the first ones; `last` locates rows' logits, as in `StepLayout`."""

    def __init__(self, step: StepLayout, places: Sequence[int] | None, last: Mapping[int, int]) -> None:
        self.step, self._places, self._last = step, places, last
        self.logits: Tensor | None = None
        """Logits for the host's sampler, once the step has run."""
        self.scores: Tensor | None = None
        """Logprobs of the prompt tokens that are scored, once the step has run."""
        self._mark: Event | None = None
        self._results: Tensor | None = None
        self._made: tuple[list[int], list[float]] = ([], [])
        self._error: Exception | None = None

    def enqueued(self, mark: Event, results: Tensor) -> None:
        """Record the event after the step, and the words that receive its results."""
        self._mark, self._results = mark, results

    def settle(self) -> None:
        """Wait, and copy the results out of memory that other steps reuse. A failure is kept for `read`."""
        if self._mark is None or self._results is None:
            return
        try:
            self._mark.wait()
            tokens, bits = self._results.numpy().reshape(2, -1)
            self._made = tokens.tolist(), bits.view(np.float32).tolist()
        except (BackendError, *TORCH_ERRORS) as error:
            self._error = error
        self._mark = self._results = None

    def wait(self) -> None:
        """Wait until the device has finished the step. Raises its failure."""
        self.settle()
        if self._error is not None:
            raise self._error

    def read(self) -> tuple[list[int], list[float]]:
        """Wait; the tokens (−1 if logits were not finite) and the logprobs of the plain row inputs. Raises the step's failure."""
        self.wait()
        tokens, logprobs = self._made
        if self._places is None:
            count = len(self.step.plain)
            return tokens[:count], logprobs[:count]
        return [tokens[place] for place in self._places], [logprobs[place] for place in self._places]

    def held(self, row_inputs: Sequence[RowInput]) -> StepLogits:
        """The logits of row inputs that the host samples, and the logprobs of their prompts."""
        if self.logits is None:
            raise RuntimeError("the step has not run")
        scores = self.prompt_scores()
        return StepLogits.of(row_inputs, self.logits, self._last, None if scores is None else self.step.scored.by_request(scores))

    def prompt_scores(self) -> Tensor | None:
        """Logprobs float32 [scored] of prompt tokens; None where no prompt is scored."""
        return self.scores
