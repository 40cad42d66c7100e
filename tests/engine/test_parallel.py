"""Models divided over two ranks, each in a process of its own, against transformers' own tokens."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.rank_pair import rank_worker
from tests.engine.rank_worker import run_rank
from tests.engine.tiny_configs import tiny_config
from tests.engine.tiny_models import expected_tokens, open_cpu, save_tiny, scored_prompt
from tgi_core.backend import Unsupported
from tgi_core.engine.parallel import loading
from tgi_core.engine.parallel.loading import check_partition
from tgi_core.engine.parallel.partition import Shard, shard_range

Pair = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Generator[Pair, None, None]:
    """Runs a checkpoint on two ranks: this process and a worker, which serves all tests here."""
    with rank_worker("tests.engine.rank_worker") as link:

        def run(folder: Path, quantize: str = "") -> list[dict[str, Any]]:
            store = tmp_path_factory.mktemp("store") / "store"
            link.send([str(folder), str(store), quantize])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return [run_rank(folder, store, 0, quantize), link.receive(120)]

        yield run


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied embeddings": ("llama", {"tie_word_embeddings": True}),
    "llama, one KV head for two ranks": ("llama", {"num_key_value_heads": 1}),
    "llama, a vocabulary of odd size": ("llama", {"vocab_size": 511}),
    "qwen3": ("qwen3", {}),
    "gemma2": ("gemma2", {"tie_word_embeddings": True, "sliding_window": 8}),
    "starcoder2": ("starcoder2", {"intermediate_size": 128}),  # torch rounds the rest of 32 elements otherwise
    "mixtral": ("mixtral", {}),
    "qwen2_moe": ("qwen2_moe", {}),
    "deepseek_v3": ("deepseek_v3", {}),
    "phi3": ("phi3", {}),
    "gpt_neox": ("gpt_neox", {}),
    "olmo2": ("olmo2", {}),
    "jamba": ("jamba", {}),
}
"""Grouped heads, experts, merged QKV, gathered projections, biases, latent attention, state-space layers, windows, tied and odd
embeddings."""


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_make_the_tokens_of_one(name: str, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 each of two ranks has transformers' greedy tokens, from about half of the weights, read part by part from the
    files; both promise the same limits."""
    model_type, overrides = CASES[name]
    if model_type in ("jamba", "qwen2_moe") and version("transformers") < "5":
        pytest.skip("transformers 4 has no plan for it, or an attention that takes all heads")
    folder = save_tiny(model_type, tmp_path / "model", **overrides)
    whole = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    monkeypatch.setattr(loading, "load_through_transformers", None)
    ranks = pair(folder)
    for rank in ranks:
        assert "error" not in rank, rank
        for id, expected in enumerate(expected_tokens(folder), 1):
            made = rank["tokens"][str(id)]
            assert made and made == expected[: len(made)], (name, id)
    assert ranks[0]["limits"] == ranks[1]["limits"] and ranks[0]["groups"] == ranks[1]["groups"]
    assert ranks[0]["groups"] == (
        ["full", "window"] if model_type == "gemma2" else ["full"] + ["state"] * (model_type == "jamba")
    )
    assert ranks[0]["meetings"] == ranks[1]["meetings"] >= 2  # once connected, and once the weights are read
    assert ranks[0]["drafted"] == ranks[1]["drafted"] and ranks[0]["counts"] == ranks[1]["counts"]
    if model_type in ("llama", "qwen3", "gemma2", "starcoder2", "phi3"):  # their modules are as exact in two ranks as in one
        assert ranks[0]["counts"] == [1, 2, 4]
    alone, capacity = open_cpu(folder, dtype="float32")
    assert ranks[0]["scores"] == pytest.approx(scored_prompt(alone, capacity), abs=1e-3) and len(ranks[0]["scores"]) == 12
    alone.close()
    if model_type in ("llama", "qwen3", "phi3", "olmo2"):  # of two KV heads, or of one that both copy, each rank has one
        position = 4 * 1 * (16 + 16) * 4
        assert all(rank["memory"]["kv cache"] == rank["limits"][0] * 16 * position for rank in ranks)
    for rank in ranks:
        most = 0.6 if version("transformers") >= "5" else 0.75  # the plans of 4.57 leave embeddings whole
        if version("transformers") < "5" and overrides.get("tie_word_embeddings"):
            most = 0.85
        if model_type in ("deepseek_v3", "jamba"):  # these leave attention and state-space layers whole
            most = 0.9
        assert rank["memory"]["weights (float32)"] < most * whole


@pytest.mark.parametrize(
    ("model_type", "world", "overrides", "words"),
    [
        ("llama", 3, {}, "num_attention_heads 4 is not divisible by it; use 1, 2 or 4"),
        ("llama", 4, {"hidden_size": 96, "num_attention_heads": 12, "num_key_value_heads": 3}, "num_key_value_heads 3"),
        ("llama", 2, {"intermediate_size": 97}, "intermediate_size 97 is not divisible"),
        ("mixtral", 2, {"intermediate_size": 97}, "intermediate_size 97 is not divisible"),
        ("gpt2", 2, {}, "no tensor-parallel plan for model type 'gpt2'; leave it out"),
    ],
)
def test_what_cannot_be_divided_is_refused(model_type: str, world: int, overrides: dict[str, Any], words: str) -> None:
    """One line that names the flag, the field and its value, and what to do, before a weight is read or another rank is met."""
    with pytest.raises(Unsupported) as caught:
        check_partition(tiny_config(model_type, **overrides), torch.float32, 0, world, most=1 << 30)
    text = str(caught.value)
    assert text.startswith("--num-shard") and words in text and "\n" not in text


@pytest.mark.parametrize(("size", "world"), [(8, 2), (7, 2), (512, 3), (2, 4)])
def test_shares_make_the_whole(size: int, world: int) -> None:
    """The ranks' ranges follow each other and cover a dimension; what they cut puts together to the whole."""
    ranges = [shard_range(size, rank, world) for rank in range(world)]
    assert ranges[0][0] == 0 and ranges[-1][1] == size
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
    tensor = torch.arange(size * 3).view(size, 3)
    assert torch.equal(torch.cat([Shard(0, (part,)).of(tensor) for part in ranges]), tensor)


def test_a_packed_cut_takes_part_of_both_halves() -> None:
    """Gate and up lie behind each other in one tensor; a rank gets a part of each."""
    tensor = torch.arange(8).view(8, 1)
    assert Shard(0, ((2, 4), (6, 8))).of(tensor).flatten().tolist() == [2, 3, 6, 7]
    assert Shard(0, ((2, 4), (6, 8))).shape(tensor.shape) == torch.Size([4, 1])
