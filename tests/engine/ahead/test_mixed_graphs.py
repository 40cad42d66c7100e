"""Captured steps with prompts: the same tokens as kernel by kernel, whatever runs beside what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.gpu_parts.random_steps import RandomSteps
from tests.engine.ahead.late import LateKit, LateQueue
from tests.engine.tiny_models import silent
from tgi_core.backend import OpenOptions, WarmupPlan
from tgi_core.backend.session import Session
from tgi_core.engine.ahead.graphs import buckets
from tgi_core.engine.attention.cache import LayerCache, PagedLayer
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepArrays, StepMetadata
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.attention.torch_sdpa import TorchAttention
from tgi_core.engine.open_model import open_session

PLAN = WarmupPlan(max_rows=24, max_row_tokens=256, max_step_tokens=512, num_blocks=1024)


@torch.library.custom_op("tgi_tests::attend_arrays", mutates_args=())
def attend_arrays(
    query: Tensor, keys: Tensor, values: Tensor, cu_seqlens: Tensor, lengths: Tensor, tables: Tensor, scaling: float
) -> Tensor:
    """query [heads, tokens, width] → [tokens, heads, width]. One operator, so that a recorded step keeps no products."""
    heads, tokens, width = query.shape
    token = torch.arange(tokens)
    row = (torch.searchsorted(cu_seqlens, token.int(), right=True) - 1).clamp_max(len(lengths) - 1)
    position = lengths[row] - (cu_seqlens[row + 1] - token)
    keys, values = (part[tables.long()].flatten(1, 2)[row] for part in (keys, values))  # [tokens, positions, kv_heads, width]
    grouped = query.view(keys.shape[2], -1, tokens, width)
    seen = torch.arange(keys.shape[1]) <= position.unsqueeze(-1)
    scores = torch.einsum("kgtw,tpkw->tkgp", grouped, keys) * scaling
    weights = scores.masked_fill(~seen.view(tokens, 1, 1, -1), -torch.inf).softmax(-1).nan_to_num()
    return torch.einsum("tkgp,tpkw->tkgw", weights, values).reshape(tokens, heads, width)


class ArraysAttention(TorchAttention):
    """Attention of all rows at once in torch's operators, from the arrays of a step alone."""

    def attend(self, query: Tensor, cache: PagedLayer, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """As all steps, captured or not."""
        assert isinstance(cache, LayerCache)
        return self.attend_rows(query, cache, step.arrays(), parameters)

    def attend_rows(self, query: Tensor, cache: LayerCache, step: StepArrays, parameters: AttentionParameters) -> Tensor:
        """query [heads, tokens, width] → [tokens, heads, width]."""
        return attend_arrays(query, cache.keys, cache.values, step.cu_seqlens, step.lengths, step.tables, parameters.scaling)


class Kit(LateKit):
    """A late device with that attention."""

    def attention(self) -> Sequence[AttentionProvider]:
        """That alone."""
        return (ArraysAttention(),)


def made(queue: LateQueue, model: Path, seed: int) -> dict[int, list[int]]:
    """The tokens of random steps."""
    session = Session(open_session(OpenOptions(str(model), "float32"), Kit(queue), silent), "late")
    capacity = session.warmup(PLAN, silent)
    found = RandomSteps(session, capacity, seed).play(60)
    session.close()
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_tokens_from_graphs(llama: Path, seed: int) -> None:
    """Prompts in chunks beside rows that decode, some sampled by the host: captured and padded they make the tokens of eager steps, and
    nearly all steps with prompts are replayed."""
    captured = LateQueue()
    found = made(captured, llama, seed)
    assert found == made(LateQueue(graphs="none"), llama, seed)
    replays = {bucket: graph.replays for bucket, graph in zip(buckets(24, mixed=True), captured.makers[-1].made, strict=True)}
    mixed = sum(count for bucket, count in replays.items() if bucket.tokens)
    assert mixed > 20 and sum(replays.values()) >= 57
