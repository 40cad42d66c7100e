"""Speculators that guess from the hidden state at a row's last position, and so keep no state of rows: Medusa and MLPSpeculator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from tgi_core.backend import Capacity, Memory, Row, WarmupPlan
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.runner import StepLogits
from tgi_core.engine.speculators.base import Proposals, continued

_MOST_ROWS = 128
"""Steps with more rows get no proposals, as in TGI: drafts pay while steps are memory-bound."""


class Heads(Protocol):
    """The layers of such a speculator."""

    name: str
    """Their layout."""
    count: int
    """Number of tokens that they guess."""
    num_bytes: int
    """Bytes of their weights."""

    def __call__(self, hidden: Tensor, newest: Tensor, count: int) -> Tensor:
        """Tokens int64 [rows, count] after the tokens `newest` int64 [rows], which were chosen after `hidden` [rows, hidden]."""


class HeadSpeculator:
    """See `Speculator`."""

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self.name, self.most = heads.name, heads.count

    def reserve(self, plan: WarmupPlan, capacity: Capacity) -> Capacity:
        """See `Speculator.reserve`; there are only weights."""
        return replace(capacity, memory=(*capacity.memory, Memory("speculator", self._heads.num_bytes)))

    def propose(self, row_inputs: Sequence[RowInput], rows: Sequence[Row], logits: StepLogits, count: int) -> Proposals:
        """See `Speculator.propose`."""
        going = [row for _, row in continued(row_inputs, rows)]
        if logits.hidden is None or not going or len(going) > _MOST_ROWS:
            return {}
        hidden = logits.hidden.after({row.request_id: len(row.tokens) for row in going})
        newest = torch.tensor([row.tokens[-1] for row in going], device=hidden.device)
        guesses = self._heads(hidden, newest, count).tolist()
        return {row.request_id: tuple(tokens) for row, tokens in zip(going, guesses, strict=True)}

    def release(self) -> None:
        """See `Speculator.release`."""
