"""The calling convention of a model."""

from __future__ import annotations

import inspect

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from tgi_core.engine.attention.interface import NotRagged
from tgi_core.engine.models.build import ids_without_logits
from tgi_core.engine.models.output_head import OutputHead
from tgi_core.engine.models.states.finding import StateLayers

_LEAST = -1e9


class ModelCall:
    """Runs ragged steps of a model without a cache of its own.

    Arguments are input ids [1, tokens], positions [1, tokens], and the indices of the requested tokens, or None for all.
    """

    def __init__(self, model: PreTrainedModel, states: StateLayers | None = None, whole_prompts: bool = False) -> None:
        """`states` belong to its state layers; `whole_prompts`: tokens of a prompt see each other. Raises NotRagged."""
        names = inspect.signature(model.forward).parameters
        if "position_ids" not in names and (states is None or states.attending):
            raise NotRagged("it takes no positions")
        self.states, self.whole_prompts = states, whole_prompts
        self.model, self._keeps, self._placed = model, "logits_to_keep" in names, "position_ids" in names
        self._more_ids = ids_without_logits(model)
        self.head: OutputHead | None = None
        """The output head, if it can run separately."""

    def __call__(self, input_ids: Tensor, positions: Tensor, keep: Tensor | None) -> Tensor:
        """Logits [kept, vocabulary]."""
        keeps = self._keeps and keep is not None
        extra: dict[str, Tensor | None] = {"logits_to_keep": keep} if keeps else {}
        if self._placed:
            extra["position_ids"] = positions
        logits: Tensor = self.model(input_ids=input_ids, use_cache=False, **extra).logits[0]
        return self._widened(logits if keeps or keep is None else logits[keep])

    def hidden(self, input_ids: Tensor, positions: Tensor, keep: Tensor | None) -> Tensor:
        """The input of `logits`, [kept, ...]: the logits themselves if the model's head cannot run separately."""
        if self.head is None:
            return self(input_ids, positions, keep)
        output = self.head.run_base({"input_ids": input_ids, "position_ids": positions, "use_cache": False})
        hidden: Tensor = output.last_hidden_state[0]
        return hidden if keep is None else hidden.index_select(0, keep)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [tokens, vocabulary]."""
        return hidden if self.head is None else self._widened(self.head.logits(hidden))

    def _widened(self, logits: Tensor) -> Tensor:
        """The same with logits for ids that only prompts can have: so small that they are never sampled, whatever the penalties."""
        least = max(_LEAST, torch.finfo(logits.dtype).min / 2)
        return F.pad(logits, (0, self._more_ids), value=least) if self._more_ids else logits
