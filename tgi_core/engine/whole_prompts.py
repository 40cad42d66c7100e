"""Models whose prompts see all of themselves, while answers see what precedes them: prefix language models such as PaliGemma."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tgi_core.engine.comparison import MODEL_ERRORS, relative_difference
from tgi_core.engine.hf_cache import HFCacheModel
from tgi_core.engine.models.loading import language_model

_APART = 0.02
"""Relative difference of logits above which a model is held to compute an answer otherwise than a prompt. ProphetNet's differ by 0.007, and
its tokens are the same; those of a model whose prompts see all of themselves, such as PaliGemma, differ by half."""


_KINDS = "token_type_ids"
"""An argument that says for each token whether it is of a prompt (0), in models that let these see each other."""


def sees_whole_prompts(model: PreTrainedModel, ids: list[int]) -> bool:
    """Whether tokens of a prompt see those after them in it, and those of an answer do not, as far as some token ids show."""
    return not_causal(model) and answers_apart(model, ids, marked=True)


def not_causal(model: PreTrainedModel) -> bool:
    """Whether layers of the language model ask for attention that is not causal."""
    return any(getattr(module, "is_causal", True) is False for module in language_model(model).modules())


def answers_apart(model: PreTrainedModel, ids: list[int], marked: bool = False) -> bool:
    """Whether decoding the last token with the model's cache gives other logits than a run over all tokens; see
    `prompt_and_answer_logits`."""
    try:
        decoded, whole = (prompt_and_answer_logits(model, ids, prompt, marked) for prompt in (len(ids) - 1, len(ids)))
    except (LookupError, *MODEL_ERRORS):
        return False
    return relative_difference(decoded[-1:].float(), whole[-1:].float()) > _APART


def prompt_and_answer_logits(model: PreTrainedModel, ids: list[int], prompt: int, marked: bool = True) -> Tensor:
    """Logits [tokens, vocabulary] of token ids of which the first `prompt` are one, and the others follow one by one, with the model's own
    cache, as in `generate`. `marked`: the model is told what the prompt is, as by its processor. Raises LookupError if it has no cache."""
    by_cache = HFCacheModel(model)
    cache = by_cache.new_cache()
    with torch.inference_mode():
        mark = {_KINDS: torch.zeros(1, prompt, dtype=torch.int64, device=model.device)} if marked else {}
        parts = [by_cache.run(ids[:prompt], 0, cache, prompt, **mark)]
        if prompt < len(ids) and not any(value is not None for value in cache.values()):
            raise LookupError("it has no cache")
        parts += [by_cache.run(ids[: end + 1], end, cache, 1) for end in range(prompt, len(ids))]
    return torch.cat(parts)
