"""What is wrong with an adapter is one line that names the adapter, the file, and the field or tensor."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.engine.lora_files import CONFIG, make_adapter, random_tensors, save_adapter
from tests.engine.tiny_models import PROMPTS, Schedule, open_cpu, save_tiny
from tgi_core.backend import Adapter, BackendError, InvalidModel, WarmupPlan
from tgi_core.engine.lora.config import read_config
from tgi_core.engine.lora.files import open_adapter

Q = "model.layers.0.self_attn.q_proj"
A, B = f"base_model.model.{Q}.lora_A.weight", f"base_model.model.{Q}.lora_B.weight"


def good() -> dict[str, Tensor]:
    """An adapter of one layer of the tiny Llama."""
    return random_tensors(iter([(Q, 64, 64)]), 4, 0)


def refused(model: Path, adapter: Adapter, says: str) -> None:
    """Opening fails with one line that says so."""
    with pytest.raises(InvalidModel) as caught:
        open_cpu(model, adapters=(adapter,))
    line = str(caught.value)
    assert line.startswith(f"adapter {adapter.name}: {adapter.directory}/adapter_") and says in line and "\n" not in line, line


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
    ({"peft_type": None}, "peft_type is None"),
    ({"task_type": "SEQ_CLS"}, "task_type is 'SEQ_CLS'"),
    ({"use_dora": True}, "DoRA"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    ({"bias": "all"}, "bias is 'all'"),
    ({"lora_bias": True}, "lora_bias"),
    ({"layer_replication": [[0, 2], [1, 3]]}, "layer_replication"),
    ({"target_parameters": ["experts.gate_up_proj"]}, "target_parameters"),
    ({"trainable_token_indices": [1]}, "trainable_token_indices"),
    ({"alora_invocation_tokens": [1]}, "aLoRA"),
    ({"use_qalora": True}, "use_qalora"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
    ({"init_lora_weights": ["eva"]}, "init_lora_weights"),
    ({"r": 0}, "r is 0"),
    ({"r": "4"}, "r is '4'"),
    ({"r": 4096}, "largest rank that is served is 512"),
    ({"r": 8}, "has rank 4 in lora_A, 4 in lora_B and 8 in the config"),
    ({"lora_alpha": None}, "lora_alpha is None"),
    ({"lora_alpha": math.inf}, "lora_alpha is inf"),
    ({"lora_alpha": math.nan}, "lora_alpha is nan"),
    ({"rank_pattern": {"(a+)+$": 4}}, "regular expression"),
    ({"rank_pattern": {"q_proj": -1}}, "rank_pattern is -1"),
    ({"alpha_pattern": [1]}, "alpha_pattern is not an object"),
]


@pytest.mark.parametrize(("changes", "says"), CONFIGS, ids=lambda value: str(value)[:40])
def test_configs(llama: Path, tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    """Options that change the result and are not supported, and values that are none."""
    refused(llama, save_adapter(tmp_path / "bad", good(), **changes), says)


TENSORS: list[tuple[dict[str, Tensor | None], str]] = [
    ({B: None}, "has no lora_B"),
    ({A: torch.ones(4)}, "is not a linear layer's"),
    (
        {A: torch.ones(4, 32)},
        "maps 32 inputs to 64 outputs, the model's layer 64 to 64; was the adapter trained on another model?",
    ),
    ({B: torch.ones(32, 4)}, "maps 64 inputs to 32 outputs"),
    ({B: torch.ones(64, 5)}, "5 in lora_B"),
    ({A: torch.full((4, 64), math.nan)}, "not finite"),
    ({A: torch.ones(4, 64, dtype=torch.int32)}, "dtype I32"),
    ({f"{A}.more": torch.ones(1)}, "not a part of a LoRA adapter"),
    ({"base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector": torch.ones(64)}, "not a part"),
    ({name.replace("q_proj", "w_pack"): value for name, value in good().items()}, "targets 'model.layers.0.self_attn.w_pack'"),
    ({name.replace("layers.0", "layers.9"): value for name, value in good().items()}, "not a module of this model (llama)"),
    ({name.replace(Q, "lm_head"): value for name, value in good().items()}, "output layer are not supported"),
    ({name.replace(Q, "model.embed_tokens"): value for name, value in good().items()}, "embeddings"),
    ({name.replace(Q, "model.norm"): value for name, value in good().items()}, "is a LlamaRMSNorm here"),
]


@pytest.mark.parametrize(("changes", "says"), TENSORS, ids=lambda value: str(value)[:40])
def test_tensors(llama: Path, tmp_path: Path, changes: dict[str, Tensor | None], says: str) -> None:
    """Tensors that are missing, damaged, of another model, or of layers that adapters cannot change."""
    tensors = {name: value for name, value in {**good(), **changes}.items() if value is not None}
    refused(llama, save_adapter(tmp_path / "bad", tensors), says)


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("adapter_config.json", None, "not found"),
        ("adapter_config.json", b"[]", "expected a JSON object"),
        ("adapter_config.json", b"{", "invalid JSON"),
        ("adapter_config.json", b'{"a":' * 100_000, "adapter_config.json"),
        ("adapter_model.safetensors", None, "cannot be read"),
        ("adapter_model.safetensors", b"", "truncated"),
        ("adapter_model.safetensors", b"\x02\0\0\0\0\0\0\0{}", "holds no tensors"),
        ("adapter_model.safetensors", b"PK\x03\x04 a pickle", "truncated, or not a safetensors file"),
    ],
)
def test_damaged_files(llama: Path, tmp_path: Path, file: str, content: bytes | None, says: str) -> None:
    """Files that are missing, cut off, or something else."""
    adapter = save_adapter(tmp_path / "bad", good())
    path = Path(adapter.directory) / file
    path.unlink() if content is None else path.write_bytes(content)
    refused(llama, adapter, says)


def test_fused_experts_are_refused(tmp_path: Path) -> None:
    """Experts that lie in one tensor are no linear layers, and the line says which module is meant."""
    model = save_tiny("mixtral", tmp_path / "model")
    tensors = random_tensors(iter([("model.layers.0.mlp.experts.0.w1", 64, 32)]), 4, 0)
    refused(model, save_adapter(tmp_path / "bad", tensors), "experts.0.w1")


def test_patterns_and_prefixes(llama: Path, tmp_path: Path) -> None:
    """Ranks and alphas of single modules count, by a module's name or its end; names without the head's prefix are found too."""
    tensors = random_tensors(iter([(Q, 64, 64)]), 4, 0) | random_tensors(
        iter([("layers.1.self_attn.q_proj", 64, 64), ("layers.1.mlp.up_proj", 64, 96)]), 2, 0
    )
    patterns = {"rank_pattern": {"^layers.1.self_attn.q_proj": 2, "up_proj": 2}, "alpha_pattern": {"q_proj": 6}}
    adapter = save_adapter(tmp_path / "good", tensors, **patterns)
    scales = {name: tensors.scale for name, tensors in open_adapter(adapter).modules.items()}
    assert scales == {Q: 6 / 4, "layers.1.self_attn.q_proj": 6 / 2, "layers.1.mlp.up_proj": 8 / 2}
    run = Schedule(*open_cpu(llama, WarmupPlan(max_rows=2, max_row_tokens=64), adapters=(adapter,)))
    run.step(run.request(1, PROMPTS[0], 9))
    assert run.tokens[1]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(st.sampled_from([*CONFIG, "rank_pattern", "alpha_pattern", "use_more"]), json_values, max_size=4))
def test_any_config(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Whatever the fields hold, a config is read or refused with the declared error."""
    (tmp_path / "adapter_config.json").write_text(json.dumps({**CONFIG, **changes}))
    try:
        assert read_config(tmp_path).scale_of("any") is not None
    except InvalidModel as error:
        assert "adapter_config.json" in str(error)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 700), bits=st.integers(1, 255), keep=st.integers(0, 3000))
def test_any_damage(llama: Path, tmp_path: Path, place: int, bits: int, keep: int) -> None:
    """A header with a changed byte, or a file cut anywhere, opens or is refused with the declared error."""
    adapter = make_adapter(tmp_path / "a", llama, "q_proj") if not (tmp_path / "a").exists() else Adapter("a", f"{tmp_path}/a")
    whole = tmp_path / "whole"
    file = Path(adapter.directory) / "adapter_model.safetensors"
    if not whole.exists():
        whole.write_bytes(file.read_bytes())
    data = bytearray(whole.read_bytes())
    data[place] ^= bits
    file.write_bytes(data[: max(keep, 8)] if keep < 2000 else data)
    try:
        open_adapter(adapter)
    except BackendError as error:
        assert isinstance(error, InvalidModel) and str(error).startswith("adapter a: ")
