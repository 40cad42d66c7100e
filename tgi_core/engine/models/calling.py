"""The calling convention of a model."""

from __future__ import annotations

import inspect

from torch import Tensor
from transformers import PreTrainedModel

from tgi_core.engine.attention.interface import NotRagged
from tgi_core.engine.models.output_head import OutputHead


class ModelCall:
    """Runs ragged steps of a model without a cache of its own.

    Arguments are input ids [1, tokens], positions [1, tokens], and the indices of the tokens that are wanted, or None for all.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Raises NotRagged."""
        names = inspect.signature(model.forward).parameters
        if "position_ids" not in names:
            raise NotRagged("it takes no positions")
        self._model, self._keeps = model, "logits_to_keep" in names
        self.head: OutputHead | None = None
        """The output head, if it can be run apart."""

    def __call__(self, input_ids: Tensor, positions: Tensor, keep: Tensor | None) -> Tensor:
        """Logits [kept, vocabulary]."""
        extra = {"logits_to_keep": keep} if self._keeps and keep is not None else {}
        logits: Tensor = self._model(input_ids=input_ids, position_ids=positions, use_cache=False, **extra).logits[0]
        return logits if extra or keep is None else logits[keep]

    def hidden(self, input_ids: Tensor, positions: Tensor, keep: Tensor | None) -> Tensor:
        """What `logits` takes, [kept, ...]: the logits themselves of a model whose head cannot be run apart."""
        if self.head is None:
            return self(input_ids, positions, keep)
        output = self.head.run_base({"input_ids": input_ids, "position_ids": positions, "use_cache": False})
        hidden: Tensor = output.last_hidden_state[0]
        return hidden if keep is None else hidden.index_select(0, keep)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [tokens, vocabulary]."""
        return hidden if self.head is None else self.head.logits(hidden)
