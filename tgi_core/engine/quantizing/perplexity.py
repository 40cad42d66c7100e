"""Calibration text, and how well a model predicts it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from tgi_core.engine.models.cache_names import cache_name
from tgi_core.errors import StartupError


def text_rows(ids: list[int], rows: int, length: int, source: str) -> Tensor:
    """The first tokens of a text as [rows, length]; fewer rows if it is shorter. Raises StartupError if it is shorter than two rows."""
    found = min(rows, len(ids) // length)
    if found < 2:
        raise StartupError(f"{source}: has {len(ids)} tokens; at least two rows of {length} are needed")
    return torch.tensor(ids[: found * length]).view(found, length)


@torch.inference_mode()
def sampled_rows(model: PreTrainedModel, rows: int, length: int, seed: int) -> Tensor:
    """The model's own text: token ids [rows, length], sampled at temperature 1 from the first token on."""
    config = model.config.get_text_config(decoder=True)
    first = config.bos_token_id if isinstance(config.bos_token_id, int) else 0
    generator = torch.Generator().manual_seed(seed)
    ids, past, name = torch.full((rows, 1), first), None, cache_name(model)
    while ids.shape[1] < length:
        output = model(ids if past is None else ids[:, -1:], use_cache=True, **{name: past})
        past = output[name]
        following = torch.multinomial(output.logits[:, -1].float().softmax(-1), 1, generator=generator)
        ids = torch.cat((ids, following), 1)
    return ids


@torch.inference_mode()
def perplexity(model: PreTrainedModel, rows: Tensor) -> float:
    """exp of the mean negative log-likelihood of the tokens of rows [rows, length] after the first of each."""
    total = 0.0
    for row in rows:
        logits = model(row.unsqueeze(0), use_cache=False).logits[0, :-1].double()
        total += float(F.cross_entropy(logits, row[1:], reduction="sum"))
    return math.exp(total / (rows.shape[0] * (rows.shape[1] - 1)))
