"""Models that compute attention with plain operators: the ragged engine computes it instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from tests.engine.mixed_rows import check_rows_alone, check_shared_prefix
from tests.engine.tiny_models import (
    NEW_TOKENS,
    PROMPTS,
    Schedule,
    expected_tokens,
    open_cpu,
    path_of,
    ragged_schedule,
    save_tiny,
)
from tgi_core.backend import CacheKind, Grant, WarmupPlan
from tgi_core.engine.attention.interface import NotRagged
from tgi_core.engine.models.position_table import PositionTable
from tgi_core.engine.models.tracing.cache import TracedCache
from tgi_core.engine.models.tracing.tensors import LayerCall, Scored

ROWS = 12
NEW_ARCHITECTURE = {"new_decoder_architecture": True, "num_kv_heads": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("bloom", {}),
    "falcon": ("falcon", {}),
    "falcon, ALiBi": ("falcon", {"alibi": True}),
    "falcon, ALiBi rounded": ("falcon", {"alibi": True, "num_attention_heads": 6, "hidden_size": 96}),
    "falcon, one KV head": ("falcon", {"multi_query": True}),
    "falcon, new": ("falcon", NEW_ARCHITECTURE),
    "falcon, new, ALiBi": ("falcon", {**NEW_ARCHITECTURE, "alibi": True}),
    "mpt": ("mpt", {}),
    "gpt_neo": ("gpt_neo", {"window_size": 5}),
    "gpt_neox_japanese": ("gpt_neox_japanese", {}),
    "xglm": ("xglm", {}),
    "stablelm": ("stablelm", {}),
    "biogpt": ("biogpt", {}),
    "bart": ("bart", {}),
    "mvp": ("mvp", {}),
    "trocr": ("trocr", {}),
    "bigbird_pegasus": ("bigbird_pegasus", {}),
    "roformer": ("roformer", {}),
    "rembert": ("rembert", {}),
}
"""With plain operators, or an attention function that is not declared; some embed positions by themselves."""


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_generate(family: str, tmp_path: Path) -> None:
    """In a ragged schedule of all rows in one batch, and for rows of all lengths together and alone."""
    model_type, sizes = FAMILIES[family]
    save_tiny(model_type, tmp_path, **sizes)
    session, capacity = open_cpu(tmp_path, WarmupPlan(max_rows=ROWS, max_row_tokens=32), dtype="float32")
    assert path_of(session) == "ragged" and capacity.groups[0].kind is CacheKind.FULL
    made = ragged_schedule(session, capacity)
    session.clear(None)
    assert all(made[id] and made[id] == tokens[: len(made[id])] for id, tokens in enumerate(expected_tokens(tmp_path), 1))
    check_rows_alone(session, capacity, ROWS, first_chunked=7)
    session.close()


@pytest.mark.parametrize("family", ["bloom", "mpt"])
def test_biases_reach_far(family: str, tmp_path: Path) -> None:
    """Behind a prompt of several blocks, tokens are those of `generate`."""
    prompt = (PROMPTS[2] * 12)[:130]
    save_tiny(family, tmp_path, **({"max_seq_len": 512} if family == "mpt" else {}))
    session, capacity = open_cpu(tmp_path, WarmupPlan(max_rows=2, max_row_tokens=256), dtype="float32")
    run = Schedule(session, capacity)
    run.step(run.request(1, prompt, 97))
    run.step(grants=(Grant(1, len(prompt) - 97),))
    while len(run.tokens[1]) < NEW_TOKENS:
        run.step()
    assert run.tokens[1] == greedy(tmp_path, prompt)
    session.close()


def greedy(folder: Path, prompt: tuple[int, ...]) -> list[int]:
    """The tokens of transformers' `generate`."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=1, max_new_tokens=NEW_TOKENS, pad_token_id=0
    )
    tokens: list[int] = out[0, -NEW_TOKENS:].tolist()
    return tokens


def test_windows_are_read_from_masks(tmp_path: Path) -> None:
    """Every other layer of GPT-Neo has a window, which no function is told: it is in a group of blocks of its own."""
    save_tiny("gpt_neo", tmp_path, window_size=20, max_position_embeddings=512)
    session, capacity = open_cpu(tmp_path, WarmupPlan(max_rows=2, max_step_tokens=32), dtype="float32")
    assert [group.window for group in capacity.groups] == [None, 20]
    session.close()


def test_rows_share_a_prefix(tmp_path: Path) -> None:
    """A request whose first block was computed for another one makes the tokens that it makes from scratch."""
    session, capacity = open_cpu(save_tiny("bloom", tmp_path), dtype="float32")
    check_shared_prefix(session, capacity)
    session.close()


def traced(compute: Callable[[Tensor, Tensor, Tensor], Tensor], heads: int = 2, past: int = 0) -> tuple[Tensor, list[Scored]]:
    """What comes of queries [1, heads, tokens, 4] and a cache's keys and values, and the scores that were asked for."""
    asked: list[Scored] = []

    def attend(layer: int, call: LayerCall, scored: Scored) -> Tensor:
        asked.append(scored)
        return torch.ones(call.tokens, heads, call.value.shape[-1])

    tokens = 1 if past else 3
    query, key = torch.ones(1, heads, tokens, 4), torch.ones(1, heads, tokens, 4)
    keys, values = TracedCache(attend, past).update(key, key)
    return compute(query, keys, values), asked


def test_scales_and_biases_are_read() -> None:
    """Whatever the order of scaling, biases and masks, they add up to one scale and one bias per key."""

    def compute(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        scores = (query @ keys.transpose(-1, -2)).view(1, 2, 1, 5).float() / 4
        scores = (scores + torch.arange(5.0)) * 2
        scores = torch.where(torch.arange(5) > 0, scores, torch.tensor(-1e9))
        scores = torch.max(scores, torch.tensor(torch.finfo(torch.float32).min))
        weights = nn.functional.dropout(torch.softmax(scores, dim=-1).type_as(query), 0.1, training=False)
        return torch.bmm(weights.view(2, 1, 5), values.reshape(2, 5, 4))

    found, asked = traced(compute, past=4)
    assert found.shape == (2, 1, 4)
    (scored,) = asked
    assert scored.bias is not None
    assert scored.scale == 0.5 and scored.bias[0].tolist() == [-1e9, 2.0, 4.0, 6.0, 8.0]


def test_one_operator_may_compute_all() -> None:
    """`baddbmm` scales and adds, `scaled_dot_product_attention` is the whole of it."""

    def added(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        folded = keys.reshape(2, 3, 4).transpose(1, 2)
        scores = torch.zeros(2, 1, 3).baddbmm(batch1=query.view(2, 3, 4), batch2=folded, beta=1.0, alpha=0.5)
        return torch.bmm(scores.softmax(-1), values.reshape(2, 3, 4))

    def whole(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(query, keys, values, is_causal=True)

    assert traced(added)[0].shape == (2, 3, 4) and traced(whole)[0].shape == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (lambda query, keys, values: (query @ keys.transpose(-1, -2)).exp() @ values, "calls exp"),
        (lambda query, keys, values: query @ keys.transpose(-1, -2) @ values, "calls matmul"),
        (lambda query, keys, values: query @ keys, "token by token"),
        (lambda query, keys, values: (query @ keys[:, :, 1:].transpose(-1, -2)).softmax(-1) @ values, "token by token"),
        (lambda query, keys, values: (query @ keys.clamp(-1, 1).transpose(-1, -2)).softmax(-1) @ values, "calls clamp"),
        (lambda query, keys, values: (query @ keys.transpose(-1, -2)).clamp(max=5).softmax(-1) @ values, "calls clamp"),
        (lambda query, keys, values: (query @ keys.transpose(-1, -2)).softmax(-2) @ values, "calls softmax"),
        (lambda query, keys, values: (query @ (keys * 2).transpose(-1, -2)).softmax(-1) @ values, "calls mul"),
    ],
)
def test_other_operators_are_refused(compute: Callable[[Tensor, Tensor, Tensor], Tensor], reason: str) -> None:
    """What is no attention of the usual kind is never computed as if it were."""
    with pytest.raises(NotRagged, match=reason):
        traced(compute)


class Decoder(nn.Module):
    """Embeds positions that it counts itself, without a dimension for rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_positions = Counting(20, 4)

    def forward(self, ids: Tensor) -> Tensor:
        """ids [1, tokens] → [1, tokens, 4]."""
        found: Tensor = self.embed_positions(ids)[None]
        return found


class Counting(nn.Embedding):
    """Positions from the number of ids."""

    def forward(self, ids: Tensor) -> Tensor:
        """[tokens, 4]."""
        return super().forward(torch.arange(ids.shape[1]))


def test_positions_come_from_a_table() -> None:
    """While it is active, a decoder that counts positions gets those of the rows."""
    decoder = Decoder()
    table = PositionTable(decoder)
    table.reserve(20, None, decoder)
    ids, positions = torch.tensor([[3, 5, 8]]), torch.tensor([[7, 0, 19]])
    with table.at(ids, positions):
        assert torch.equal(decoder(ids)[0], decoder.embed_positions.weight[positions[0]])
    assert torch.equal(decoder(ids)[0], decoder.embed_positions.weight[:3])
