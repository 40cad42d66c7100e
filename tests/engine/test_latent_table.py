"""Models with latent attention run from their table, found by the fields of their config and the tensors of their checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.engine.family_flags import rope, save_flagged
from tests.engine.test_table_decoder import Elsewhere, TorchKit, check_exact
from tests.engine.tiny_models import save_tiny
from tgi_core.backend import Group, OpenOptions, Unsupported
from tgi_core.engine.decoder.partition import RankWeights
from tgi_core.engine.decoder.unsupported import UnsupportedFamily
from tgi_core.engine.open_model import table_weights

EXACT = [name for name in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "sarvam_mla", "youtu") if name in CONFIG_MAPPING]


@pytest.mark.parametrize("model_type", EXACT)
def test_latent_attention_is_token_exact(model_type: str, tmp_path: Path) -> None:
    """In float32 they make transformers' own greedy tokens: in chunks, in steps mixed of prefill and decode."""
    check_exact(save_tiny(model_type, tmp_path))


MSCALES = rope(
    "yarn", factor=8.0, original_max_position_embeddings=32, rope_theta=500.0, mscale=0.7, mscale_all_dim=1.1, beta_fast=8.0
)
GROUPS = {"n_routed_experts": 12, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3}
V2 = {"topk_method": "group_limited_greedy", "routed_scaling_factor": 2.0}
FLAGS: list[tuple[str, dict[str, object]]] = [
    ("deepseek_v3", GROUPS | {"routed_scaling_factor": 2.5, "n_shared_experts": 2, "first_k_dense_replace": 2}),
    ("deepseek_v3", {"norm_topk_prob": False, "rope_interleave": False, "attention_bias": True, "first_k_dense_replace": 0}),
    ("deepseek_v3", MSCALES | {"tie_word_embeddings": True, "first_k_dense_replace": 9}),
    ("deepseek_v2", GROUPS | V2 | {"q_lora_rank": None, "first_k_dense_replace": 1}),
    ("deepseek_v2", MSCALES | {"q_lora_rank": 24, "v_head_dim": 24}),
]


@pytest.mark.parametrize(("model_type", "fields"), FLAGS)
def test_flags_of_latent_attention(model_type: str, fields: dict[str, object], tmp_path: Path) -> None:
    """Groups of experts, dense layers, scales, biases, queries with a latent or without, rotary variants, each against transformers."""
    check_exact(save_flagged(model_type, fields, tmp_path))


def test_a_name_has_no_effect(tmp_path: Path) -> None:
    """A type that nobody knows is found by its structure."""
    folder = save_tiny("deepseek_v3", tmp_path)
    _change(folder, model_type="nobody")
    assert table_weights(OpenOptions(str(folder)), TorchKit()).table.latent is not None


def test_layers_for_multi_token_prediction_are_left_out(tmp_path: Path) -> None:
    """A layer behind the last one is no part of the table if the config counts it there, and refused if not."""
    folder = save_tiny("deepseek_v3", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    save_file(tensors | {f"model.layers.{layers}.enorm.weight": torch.ones(4)}, folder / "model.safetensors", {"format": "pt"})
    _change(folder, num_nextn_predict_layers=1)
    before = table_weights(OpenOptions(str(folder)), TorchKit()).num_bytes
    assert before == sum(tensor.numel() for tensor in tensors.values()) * 4
    _change(folder, num_nextn_predict_layers=0)
    with pytest.raises(UnsupportedFamily, match="enorm"):
        table_weights(OpenOptions(str(folder)), TorchKit())


REFUSED = [
    ({"embedding_multiplier": 2.0}, "embedding_multiplier"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.1}}, "llama_4_scaling_beta"),
    ({"num_key_value_heads": 2}, "as many heads"),
    ({"hidden_act": "gelu"}, "gelu"),
    ({"scoring_func": "softmax"}, "softmax"),
    ({"topk_method": "greedy"}, "norm_topk_prob"),
    ({"topk_method": "greedy", "norm_topk_prob": False}, "e_score_correction_bias"),
    ({"moe_layer_freq": 2}, "every so many"),
    ({"first_k_dense_replace": None}, "which layers"),
    ({"n_group": 3}, "groups"),
    ({"mlp_bias": True}, "biases"),
    ({"q_lora_rank": None, "attention_bias": True}, "biases"),
    ({"v_head_dim": -1}, "v_head_dim"),
    ({"routed_scaling_factor": None}, "routed_scaling_factor"),
    (rope("yarn", factor=8.0, original_max_position_embeddings=32, rope_theta=500.0, mscale_all_dim="1"), "mscale_all_dim"),
]


@pytest.mark.parametrize(("fields", "reason"), REFUSED)
def test_what_is_refused(fields: dict[str, object], reason: str, tmp_path: Path) -> None:
    """A config or checkpoint with anything else is refused, and the reason names it."""
    folder = save_tiny("deepseek_v3", tmp_path)
    _change(folder, **fields)
    with pytest.raises(UnsupportedFamily, match=reason):
        table_weights(OpenOptions(str(folder)), TorchKit())


@pytest.mark.parametrize("model_type", ["minicpm3", "kimi_linear", "deepseek_v32", "axk1", "longcat_flash"])
def test_other_models_with_latents_are_refused(model_type: str, tmp_path: Path) -> None:
    """They compute something that the table does not describe."""
    if model_type not in CONFIG_MAPPING:
        pytest.skip("this version of transformers does not have it")
    folder = save_tiny(model_type, tmp_path)
    with pytest.raises(UnsupportedFamily):
        table_weights(OpenOptions(str(folder)), TorchKit())


def test_devices_without_latent_attention(tmp_path: Path) -> None:
    """They are never given such a table, nor are ranks."""
    folder = save_tiny("youtu" if "youtu" in CONFIG_MAPPING else "deepseek_v3", tmp_path)
    with pytest.raises(UnsupportedFamily, match="no latent attention"):
        table_weights(OpenOptions(str(folder)), Elsewhere())
    with pytest.raises(Unsupported, match="latent attention"):
        RankWeights(table_weights(OpenOptions(str(folder)), TorchKit()), Group(0, 2, "file:unused", 0, 2))


def _change(folder: Path, **fields: object) -> None:
    """Change a config.json; None removes a field."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | fields
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
