"""What a model is compared with before it is served: the logits that transformers' `generate` gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, GPTNeoForCausalLM

from tests.engine.tiny_configs import TRANSFORMERS_5, tiny_config
from tests.engine.tiny_models import expected_tokens, greedy_tokens, open_cpu, ragged_schedule, save_tiny
from tgi_core.backend import InvalidModel
from tgi_core.engine.models.generating import counts_positions, generated_logits

IDS = [11, 45, 7, 300, 28, 91]


def test_logits_of_chosen_tokens(tmp_path: Path) -> None:
    """They are those of one run over the same tokens, whatever the checkpoint's own settings of generation."""
    model = AutoModelForCausalLM.from_pretrained(save_tiny("gpt_neo", tmp_path)).eval()
    model.generation_config.update(do_sample=True, temperature=3.0, max_new_tokens=1, eos_token_id=list(range(512)))
    before = model.generation_config.to_dict()
    found = generated_logits(model, IDS, 3)
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0, 2:]
    assert torch.allclose(found, expected, atol=1e-4) and model.generation_config.to_dict() == before
    assert not counts_positions(model)


def test_a_model_that_counts_positions(tmp_path: Path) -> None:
    """It gets none: its tokens are those of `generate`, and its rows end before its last position."""
    if TRANSFORMERS_5:
        config = tiny_config("kosmos-2.5")
        for name, size in {"embed_dim": 64, "layers": 2, "attention_heads": 4, "init_std": 0.3}.items():
            setattr(config.text_config, name, size)
        AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path)
        model = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32)
    else:
        model = AutoModelForCausalLM.from_pretrained(save_tiny("xlm-roberta-xl", tmp_path), dtype=torch.float32)
    assert counts_positions(model.eval())
    session, capacity = open_cpu(tmp_path, dtype="float32")
    made = ragged_schedule(session, capacity)
    assert all(made[id] == expected[: len(made[id])] for id, expected in enumerate(greedy_tokens(model), 1))
    text = model.config.get_text_config(decoder=True)
    assert session.capabilities().max_positions == text.max_position_embeddings - text.pad_token_id - 1
    session.close()


def test_what_only_generate_does_is_not_served_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model to which `generate` gives what this engine does not, is refused."""
    plain = GPTNeoForCausalLM.prepare_inputs_for_generation

    def shifted(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        prepared: dict[str, Any] = plain(self, *args, **kwargs)
        return prepared | {"position_ids": prepared["position_ids"] + 3}

    save_tiny("gpt_neo", tmp_path)
    monkeypatch.setattr(GPTNeoForCausalLM, "prepare_inputs_for_generation", shifted)
    with pytest.raises(InvalidModel, match="cannot be run for many rows: NotRagged: logits differ from the reference"):
        open_cpu(tmp_path, dtype="float32")


@pytest.mark.parametrize("family", ["moshi"])
def test_windows_that_only_masks_have(family: str, tmp_path: Path) -> None:
    """A model that makes masks only from those that it is given gets one, as from `generate`: rows longer than its window are right."""
    session, capacity = open_cpu(save_tiny(family, tmp_path), dtype="float32")
    made = ragged_schedule(session, capacity)
    assert all(made[id] == expected[: len(made[id])] for id, expected in enumerate(expected_tokens(tmp_path), 1))
    session.close()
