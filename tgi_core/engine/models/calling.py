"""The calling convention of a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from tgi_core.engine.attention.interface import NotRagged
from tgi_core.engine.models.build import ids_without_logits, max_positions
from tgi_core.engine.models.output_head import OutputHead
from tgi_core.engine.models.position_table import PositionTable
from tgi_core.engine.models.states.finding import StateLayers

_LEAST = -1e9


@dataclass(frozen=True, slots=True)
class Convention:
    """What `generate` does for a model besides running it causally over tokens at positions from zero."""

    whole_prompts: bool = False
    """Tokens of a prompt see each other."""
    counts_positions: bool = False
    """The model gets no positions, though it takes them; see `counts_positions`."""
    whole_rows: bool = False
    """The model gets all tokens of a row in every step, and leaves those out itself that its cache has."""


PLAIN = Convention()


class ModelCall:
    """Runs ragged steps of a model without a cache of its own.

    Arguments are input ids [1, tokens], positions [1, tokens], and the indices of the requested tokens, or None for all.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        states: StateLayers | None = None,
        given: Callable[[], dict[str, Any]] | None = None,
        pad: int | None = None,
        convention: Convention = PLAIN,
    ) -> None:
        """`states` belong to its state layers. `given` makes the arguments of a step whose model needs a cache object. The token `pad` may
        have no position. Raises NotRagged."""
        names = inspect.signature(model.forward).parameters
        self.states, self.whole_prompts, self._given = states, convention.whole_prompts, given
        self.model, self._keeps = model, "logits_to_keep" in names
        self._placed = "position_ids" in names and not convention.counts_positions
        self._more_ids = ids_without_logits(model)
        self._table: PositionTable | None = None
        if not self._placed and given is None and (states is None or states.attending):
            self._table = _position_table(model, pad)
        elif not self._placed and given is not None:
            self._table = _position_table(model, pad, needed=False)
        self.head: OutputHead | None = None
        """The output head, if it can run separately."""

    def __call__(self, input_ids: Tensor, positions: Tensor, keep: Tensor | None) -> Tensor:
        """Logits [kept, vocabulary]."""
        keeps = self._keeps and keep is not None
        extra: dict[str, Tensor | None] = {"logits_to_keep": keep} if keeps else {}
        with self._at(input_ids, positions):
            logits: Tensor = self.model(**self._arguments(input_ids, positions), **extra).logits[0]
        return self._widened(logits if keeps or keep is None else logits[keep])

    def hidden(self, input_ids: Tensor, positions: Tensor, keep: Tensor | None) -> Tensor:
        """The input of `logits`, [kept, ...]: the logits themselves if the model's head cannot run separately."""
        if self.head is None:
            return self(input_ids, positions, keep)
        with self._at(input_ids, positions):
            output = self.head.run_base(self._arguments(input_ids, positions))
        hidden: Tensor = output.last_hidden_state[0]
        return hidden if keep is None else hidden.index_select(0, keep)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [tokens, vocabulary]."""
        return hidden if self.head is None else self._widened(self.head.logits(hidden))

    def _widened(self, logits: Tensor) -> Tensor:
        """The same with logits for ids that only prompts can have: so small that they are never sampled, whatever the penalties."""
        least = max(_LEAST, torch.finfo(logits.dtype).min / 2)
        return F.pad(logits, (0, self._more_ids), value=least) if self._more_ids else logits

    def _arguments(self, input_ids: Tensor, positions: Tensor) -> dict[str, Any]:
        placed = {"position_ids": positions} if self._placed else {}
        return {"input_ids": input_ids, **placed, **({"use_cache": False} if self._given is None else self._given())}

    def _at(self, input_ids: Tensor, positions: Tensor) -> AbstractContextManager[None]:
        return nullcontext() if self._table is None else self._table.at(input_ids, positions)


def _position_table(model: PreTrainedModel, pad: int | None, needed: bool = True) -> PositionTable | None:
    """For a model that takes no positions. Raises NotRagged if it has no module for them, but one is needed."""
    table, positions = PositionTable(model), max_positions(model.config)
    if not table.exists or not positions:
        if needed:
            raise NotRagged("it takes no positions")
        return None
    with torch.inference_mode():
        table.reserve(
            positions,
            pad,
            lambda ids: model(input_ids=ids.to(model.device), use_cache=False),
        )
    return table
