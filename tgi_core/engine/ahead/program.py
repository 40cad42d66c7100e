"""A step on the device, with its state between steps: the newest token and the block table of every row slot."""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.backend.batch_tracker import RowState
from tgi_core.engine.ahead.bounds import StepBounds
from tgi_core.engine.ahead.inputs import StepInputs
from tgi_core.engine.device_queue import StepSampler
from tgi_core.engine.logits_processing import can_process
from tgi_core.engine.prompt_scores import ScoredTokens
from tgi_core.engine.row_filters import keeps_head
from tgi_core.engine.runner import CapturableRunner
from tgi_core.engine.sampler import is_plain


class StepProgram:
    """The device side of all steps of a session. Its methods only enqueue."""

    def __init__(self, runner: CapturableRunner, sampler: StepSampler, row_slots: int, width: int, device: torch.device) -> None:
        self._runner, self._sampler = runner, sampler
        with torch.inference_mode():
            self.newest = torch.zeros(row_slots, dtype=torch.int64, device=device)
            self._tables = torch.zeros(row_slots, width, dtype=torch.int32, device=device)

    @property
    def precision(self) -> torch.dtype:
        """The dtype of temperatures."""
        return self._sampler.precision

    def samples(self, row: RowState, vocab_size: int) -> bool:
        """Whether the device samples a row."""
        return is_plain(row, vocab_size) or (self._sampler.filters and keeps_head(row))

    def processes(self, row: RowState) -> bool:
        """Whether the device samples a row from processed logits."""
        return self._sampler.processes and can_process(row, self._sampler.precision)

    @property
    def captures_prompts(self) -> bool:
        """Whether steps with prompts can be captured."""
        return self._runner.captures_prompts

    @property
    def lean_draws(self) -> bool:
        """Whether lean steps draw as well."""
        return self._sampler.lean_draws

    @torch.inference_mode()
    def update(self, cells: Tensor, blocks: Tensor) -> None:
        """Write blocks to the tables."""
        self._tables.view(-1).index_copy_(0, cells, blocks)

    @torch.inference_mode()
    def step(self, inputs: StepInputs, bounds: StepBounds, draws: bool, result: Tensor) -> tuple[Tensor, Tensor | None]:
        """One step: tables, input ids, forward pass, and the tokens of plain rows.

        `result` int32 [2 · plain] gets the tokens, then the bits of their logprobs. Returns the logits of the kept tokens, and where some
        are requested, logprobs of prompt tokens, float32 [scored].
        """
        self.update(inputs.cells, inputs.blocks)
        carried = self.newest.index_select(0, (-1 - inputs.ids).clamp_min(0))
        ids = torch.where(inputs.ids < 0, carried, inputs.ids)
        tables = self._tables[:, : bounds.width].index_select(0, inputs.row_slots)
        step = bounds.metadata(inputs, ids, tables)
        scores: Tensor | None = None
        if len(inputs.scored):
            scored = ScoredTokens(inputs.scored, inputs.following)
            logits, scores = self._runner.forward_scored(step, inputs.kept, scored)
        else:
            logits = self._runner.forward(step, None if bounds.every else inputs.kept)
        if len(inputs.sampled):
            self._sample(inputs, logits, draws, result)
        return logits, scores

    def _sample(self, inputs: StepInputs, logits: Tensor, draws: bool, result: Tensor) -> None:
        asked = logits.index_select(0, inputs.picked) if len(inputs.picked) else logits
        draws = draws or self._sampler.lean_draws
        filters = inputs.filters if self._sampler.filters else None
        tokens, logprobs = self._sampler.choose(asked, inputs.temperatures if draws else None, inputs.uniforms, filters)
        self.newest.index_copy_(0, inputs.sampled, tokens.clamp_min(0))
        count = len(inputs.sampled)
        result[:count].copy_(tokens)
        result[count : 2 * count].copy_(logprobs.float().view(torch.int32))
