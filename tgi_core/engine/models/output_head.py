"""The output head of a transformers model, run separately from what comes before it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tgi_core.engine.attention.interface import NotRagged
from tgi_core.engine.comparison import MODEL_ERRORS, relative_difference

_log = logging.getLogger("tgi_core.engine")

LIMIT = 1e-3
"""The allowed relative difference of logits when the output head runs separately: the same operators run over the same shapes."""


def runs_apart(model: PreTrainedModel, whole: Callable[[], Tensor], apart: Callable[[], Tensor]) -> bool:
    """Whether logits computed with the output head `apart` equal those of the `whole` model."""
    try:
        with torch.inference_mode():
            expected = whole()
            return relative_difference(apart(), expected) <= LIMIT
    except MODEL_ERRORS as error:
        _log.info("%s: its output head cannot run separately: %s", model.config.model_type, error)
        return False


class OutputHead:
    """Whatever a causal language model does after its base model: a linear layer, often scales or soft caps.

    The model's own `forward` computes it, around a base that returns the given hidden states.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Raises NotRagged for a model without a base."""
        if model.base_model is model:
            raise NotRagged("its output head is part of its base model")
        self._model, self._base = model, _called_base(model)
        self._takes = set(inspect.signature(model.forward).parameters)
        self._base_takes = set(inspect.signature(self._base.forward).parameters)
        self._output: type[Any] | None = None

    def run_base(self, arguments: dict[str, Any]) -> Any:
        """The base model's output, given those arguments that it accepts. Its `last_hidden_state` [1, tokens, hidden] is the input of
        `logits`."""
        output = self._base(**{name: value for name, value in arguments.items() if name in self._base_takes})
        self._output = type(output)
        return output

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [tokens, vocabulary] of hidden states [tokens, hidden]. Call `run_base` first. Only enqueues."""
        if self._output is None:
            raise RuntimeError("no base model has run")
        given = self._output(last_hidden_state=hidden.unsqueeze(0))
        tokens = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        arguments = {"input_ids": tokens, "position_ids": tokens, "use_cache": False}
        self._base.forward = lambda *args, **kwargs: given
        try:
            logits: Tensor = self._model(**{name: value for name, value in arguments.items() if name in self._takes}).logits[0]
        finally:
            del self._base.forward
        return logits


def _called_base(model: PreTrainedModel) -> PreTrainedModel:
    """The base model that a model calls: decoders of encoder-decoders are in a wrapper that passes its arguments on, and is not called."""
    base: PreTrainedModel = model.base_model
    kinds = {parameter.kind for parameter in inspect.signature(base.forward).parameters.values()}
    passes_on = kinds == {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return getattr(base, "decoder", base) if passes_on else base
