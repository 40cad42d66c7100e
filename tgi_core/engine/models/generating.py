"""What transformers' own `generate` gives a model, and the logits that it gets: the reference for every runner of this engine."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from tgi_core.backend import InvalidModel
from tgi_core.engine.comparison import MODEL_ERRORS, relative_difference
from tgi_core.engine.models.output_head import LIMIT
from tgi_core.errors import one_line

_log = logging.getLogger("tgi_core.engine")

_WATCHED = (5, 9, 6, 7)
"""Tokens over which a model is watched: small ids that are hardly ever those of padding."""


class _Given(Exception):
    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.arguments = arguments


def generated_logits(model: PreTrainedModel, ids: list[int], prompt: int, given: list[int] | None = None) -> Tensor:
    """Logits [len(ids) - prompt + 1, vocabulary] that `generate` gets after a prompt of the first `prompt` ids, and after each of the
    others, which it is made to choose; `given` gets the number of tokens that the model is given in each step. Where `generate` fails, they
    are those of one plain run. Raises InvalidModel."""

    def choose(chosen: Tensor, scores: Tensor) -> Tensor:
        only = torch.full_like(scores, -torch.inf)
        only[:, ids[min(chosen.shape[1], len(ids) - 1)]] = 0
        return only

    def count(module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if given is not None and isinstance(kwargs.get("input_ids"), Tensor):
            given.append(kwargs["input_ids"].shape[1])

    try:
        with _hooked(model, count):
            found = _generate(model, ids[:prompt], len(ids) - prompt + 1, logits_processor=[choose])
        return torch.cat(found.logits)
    except MODEL_ERRORS as error:
        _log.warning("%s: logits are compared with those of a plain run: generate: %s", model.config.model_type, one_line(error))
        return plain_logits(model, ids)[prompt - 1 :]


def plain_logits(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """Logits [tokens, vocabulary] as transformers computes them in one run. Raises InvalidModel."""
    # With a cache, since in transformers 4 layers that share keys and values (Gemma 3n) do so through it, or not at all.
    arguments = {"input_ids": torch.tensor([ids], device=model.device), "use_cache": True}
    arguments["position_ids"] = torch.arange(len(ids), device=model.device).unsqueeze(0)
    takes = inspect.signature(model.forward).parameters
    try:
        with torch.inference_mode():
            logits: Tensor = model(**{name: value for name, value in arguments.items() if name in takes}).logits[0]
    except MODEL_ERRORS as error:
        raise InvalidModel(f"model type {model.config.model_type!r} cannot be run: {one_line(error)}") from error
    return logits


def counts_positions(model: PreTrainedModel) -> bool:
    """Whether a model that takes positions gets none from zero in `generate`, but those that it counts in a way of its own: from the number
    after the padding token, as RoBERTa did. Call it while the model attends by itself."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    ids = torch.tensor([_WATCHED], device=model.device)
    positions = torch.arange(len(_WATCHED), device=model.device).unsqueeze(0)
    try:
        given = _arguments(model).get("position_ids")
        if given is not None and given.shape[-1] == len(_WATCHED) and bool((given == positions).all()):
            return False
        with torch.inference_mode():
            counted, placed = (model(input_ids=ids, **more).logits for more in ({}, {"position_ids": positions}))
        return relative_difference(placed, counted) > LIMIT
    except MODEL_ERRORS:
        return False


def _arguments(model: PreTrainedModel) -> dict[str, Any]:
    """The arguments that a model gets from `generate` for a prompt; it does not run."""

    def tell(module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        raise _Given(kwargs)

    try:
        with _hooked(model, tell):
            _generate(model, list(_WATCHED), 1)
    except _Given as given:
        return given.arguments
    return {}


@contextmanager
def _hooked(model: PreTrainedModel, hook: Callable[..., Any]) -> Iterator[None]:
    """Inside, `hook` is called with the model's arguments before it runs."""
    handle = model.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _generate(model: PreTrainedModel, prompt: list[int], tokens: int, **more: Any) -> Any:
    """`generate` without what a checkpoint says of sampling."""
    ids, own = torch.tensor([prompt], device=model.device), model.generation_config
    asked = GenerationConfig(
        max_new_tokens=tokens, do_sample=False, use_cache=True, return_dict_in_generate=True, output_logits=True
    )
    model.generation_config = GenerationConfig()
    try:
        with torch.inference_mode():
            return model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=asked, **more)
    finally:
        model.generation_config = own
