"""Models whose prompts see all of themselves, while answers see what precedes them: prefix language models such as PaliGemma."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tgi_core.engine.comparison import MODEL_ERRORS, relative_difference
from tgi_core.engine.hf_cache import HFCacheModel
from tgi_core.engine.models.loading import language_model
from tgi_core.engine.self_check import tolerance

_KINDS = "token_type_ids"
"""An argument that says for each token whether it is of a prompt (0), in models that let these see each other."""


def sees_whole_prompts(model: PreTrainedModel, ids: list[int]) -> bool:
    """Whether tokens of a prompt see those after them in it, and those of an answer do not, as far as some token ids show."""
    if not not_causal(model):
        return False
    prompt = len(ids) - 1
    others = [*ids[: prompt - 1], ids[0], *ids[prompt:]]
    try:
        found, other = (prompt_and_answer_logits(model, each, prompt)[: prompt - 1].float() for each in (ids, others))
    except (LookupError, *MODEL_ERRORS):
        return False
    # what a token cannot see does not change its logits; the last bits of bfloat16 depend on which tokens share an expert
    return relative_difference(other, found) > tolerance(model.dtype)


def not_causal(model: PreTrainedModel) -> bool:
    """Whether layers of the language model ask for attention that is not causal."""
    return any(getattr(module, "is_causal", True) is False for module in language_model(model).modules())


def prompt_and_answer_logits(model: PreTrainedModel, ids: list[int], prompt: int) -> Tensor:
    """Logits [tokens, vocabulary] of token ids of which the first `prompt` are one, as its processor marks it, and the others follow one by
    one, with the model's own cache, as in `generate`. Raises LookupError if it has no cache."""
    by_cache = HFCacheModel(model)
    cache = by_cache.new_cache()
    with torch.inference_mode():
        mark = {_KINDS: torch.zeros(1, prompt, dtype=torch.int64, device=model.device)}
        parts = [by_cache.run(ids[:prompt], 0, cache, prompt, **mark)]
        if prompt < len(ids) and not any(value is not None for value in cache.values()):
            raise LookupError("it has no cache")
        parts += [by_cache.run(ids[: end + 1], end, cache, 1) for end in range(prompt, len(ids))]
    return torch.cat(parts)
