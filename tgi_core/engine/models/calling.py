"""The calling convention of a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from torch import Tensor
from transformers import PreTrainedModel

from tgi_core.engine.attention.interface import NotRagged

Call = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(input ids [1, tokens], positions [1, tokens], indices of the tokens whose logits are wanted, or None for all) → logits."""


def calling_convention(model: PreTrainedModel) -> Call:
    """A function that runs one ragged step of a model without a cache of its own. Raises NotRagged."""
    names = inspect.signature(model.forward).parameters
    if "position_ids" not in names:
        raise NotRagged("it takes no positions")
    keeps = "logits_to_keep" in names

    def call(input_ids: Tensor, positions: Tensor, keep: Tensor | None) -> Tensor:
        extra = {"logits_to_keep": keep} if keeps and keep is not None else {}
        logits = model(input_ids=input_ids, position_ids=positions, use_cache=False, **extra).logits[0]
        return logits if extra or keep is None else logits[keep]

    return call
