"""The session of an encoder-decoder: rows are sampled as the decoder sees them, without the encoder's tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from tgi_core.backend import Feature, MaskSource, Row
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.decoder_rules import DecoderRules
from tgi_core.engine.encoder_decoder.runner import EncoderDecoderRunner
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.row_results import row_results
from tgi_core.engine.runner import StepLogits
from tgi_core.engine.sync_session import SyncSession

_NEVER = -1e9
"""The logit of a token that the model's rules exclude: finite, since infinite logits count as a fault."""


class EncoderDecoderSession(SyncSession):
    """One session over one encoder-decoder, a step at a time.

    To the formula, a row's tokens are the start token in place of the prompt, then its answer. No grammar contains a forced first token,
    so a model that has one takes no masks.
    """

    def __init__(
        self, runner: EncoderDecoderRunner, shape: ModelShape, masks: MaskSource | None, rules: DecoderRules, **fields: Any
    ) -> None:
        super().__init__(runner, shape, masks, **fields)
        self._rules = rules
        features = self._capabilities.features - {Feature.TENSOR_PARALLEL}
        self.declare(features=features if rules.first is None else features - {Feature.MASKS})

    def _sample(self, row_inputs: list[RowInput], logits: StepLogits) -> tuple[Row, ...]:
        self._apply_rules(logits.last, [each for each in row_inputs if each.yields])
        rows = row_results([self._seen(each) for each in row_inputs], logits, self._masks)
        rows = tuple(self._with_prompt(each, row) for each, row in zip(row_inputs, rows, strict=True))
        for row_input, row in zip(row_inputs, rows, strict=True):
            self._keep(row_input, row)
        return rows

    def _apply_rules(self, logits: Tensor, row_inputs: list[RowInput]) -> None:
        """Change the logits [rows, vocabulary] of rows."""
        if self._rules.never:
            logits[:, list(self._rules.never)] = _NEVER
        if self._rules.first is not None:
            for index, each in enumerate(row_inputs):
                if len(each.row.tokens) == each.row.request.prompt_len:
                    logits[index] = _NEVER
                    logits[index, self._rules.first] = 0

    def _seen(self, row_input: RowInput) -> RowInput:
        """A row as its decoder sees it, with all tokens at their positions."""
        row, prompt_len = row_input.row, row_input.row.request.prompt_len
        tokens = [self._rules.start] * prompt_len + row.tokens[prompt_len:]
        request = replace(row.request, want=replace(row.request.want, prompt_logprobs=False))
        return replace(row_input, row=replace(row, request=request, tokens=tokens))

    @staticmethod
    def _with_prompt(row_input: RowInput, row: Row) -> Row:
        """The encoder's tokens have no logprobs."""
        request = row_input.row.request
        if not request.want.prompt_logprobs or row_input.start >= request.prompt_len:
            return row
        return replace(row, prompt_logprobs=(None,) * request.prompt_len)
