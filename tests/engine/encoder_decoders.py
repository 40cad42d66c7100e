"""Tiny random encoder-decoders, and what transformers' `generate` makes of them."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.engine.tiny_configs import SMALL, TRANSFORMERS_5
from tests.engine.tiny_models import ANY_ERROR, NEW_TOKENS, VOCAB, Outcome, Schedule, open_cpu, scatter, short
from tgi_core.backend import BackendError, WarmupPlan

START = 2
SPECIAL: dict[str, dict[str, Any]] = {
    "bigbird_pegasus": {"attention_type": "original_full"},
    "led": {"max_encoder_position_embeddings": 256, "max_decoder_position_embeddings": 256, "attention_window": [8, 8]},
    "longt5": {"encoder_attention_type": "local", "local_radius": 127},
    "t5": {"feed_forward_proj": "gated-gelu"},
}
"""What single types need beside `SMALL`."""


def tiny_config(model_type: str, **overrides: Any) -> PretrainedConfig:
    """A small config of a type."""
    kind = CONFIG_MAPPING[model_type]
    default = kind()
    fields = _shrunk(default)
    for name in getattr(default, "sub_configs", None) or {}:
        if isinstance(nested := getattr(default, name, None), PretrainedConfig):
            fields[name] = _shrunk(nested)
    fields |= {
        name: 2 for name in ("num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers") if hasattr(default, name)
    }
    if not TRANSFORMERS_5:  # it leaves embeddings random that encoder and decoder share, but not with the head
        fields["tie_word_embeddings"] = True
    fields |= {"pad_token_id": 0, "bos_token_id": START, "eos_token_id": 1, "decoder_start_token_id": START}
    return kind(**fields | SPECIAL.get(model_type, {}) | overrides)


def _shrunk(default: PretrainedConfig) -> dict[str, Any]:
    return {name: value for name, value in SMALL.items() if name not in ("is_decoder", "sliding_window") and _has(default, name)}


def _has(config: PretrainedConfig, name: str) -> bool:
    """Whether a field can be set."""
    return name not in config.attribute_map and getattr(config, name, None) is not None


def save_tiny(model_type: str, folder: Path, generation: dict[str, Any] | None = None, **overrides: Any) -> Path:
    """Write a random checkpoint whose answers are not all alike, and return its directory."""
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(tiny_config(model_type, **overrides), dtype=torch.float32).eval()
    for value in model.parameters():
        if value.ndim > 1:
            value.data *= 0.15 / value.std().clamp_min(1e-6)
    scatter(model)
    for name, value in (generation or {}).items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    return folder


def prompts(count: int) -> list[tuple[int, ...]]:
    """Prompts of 1 to 24 tokens."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 25, (count,), generator=generator).tolist()
    return [tuple(torch.randint(3, VOCAB, (length,), generator=generator).tolist()) for length in lengths]


def expected_tokens(folder: Path, asked: list[tuple[int, ...]], new_tokens: int, **options: Any) -> list[list[int]]:
    """Greedy tokens of `generate`, prompt by prompt, without the start token; all as long as asked for."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    for name in ("eos_token_id", "forced_eos_token_id"):
        setattr(model.generation_config, name, None)
    made = []
    for prompt in asked:
        ids = torch.tensor([prompt])
        given = {"attention_mask": torch.ones_like(ids), "do_sample": False, "num_beams": 1, "max_new_tokens": new_tokens}
        made.append(model.generate(ids, **given | options)[0, 1:].tolist())
    return made


def compare(model_type: str, folder: Path) -> Outcome:
    """Make, run and compare one type, with rows that join while others decode; never raises for what a model's code does."""
    logging.disable(logging.WARNING)
    try:
        save_tiny(model_type, folder)
        asked = prompts(4)
        expected = expected_tokens(folder, asked, NEW_TOKENS)
    except ANY_ERROR as error:
        return Outcome("unsupported", "", f"transformers: {short(error)}")
    try:
        run = Schedule(*open_cpu(folder, WarmupPlan(max_rows=4), dtype="float32"))
        for id, prompt in enumerate(asked, 1):
            run.step(replace(run.request(id, prompt, len(prompt)), blocks=((5 - id,),)))
            run.step()
        while min(map(len, run.tokens.values())) < NEW_TOKENS:
            run.step()
    except BackendError as error:
        return Outcome("unsupported", "", " ".join(str(error).split()).replace("|", "/"))
    except ANY_ERROR as error:
        return Outcome("unsupported", "", short(error))
    wrong = [id for id, tokens in enumerate(expected, 1) if run.tokens[id][:NEW_TOKENS] != tokens]
    distinct = len({token for tokens in expected for token in tokens})
    note = f"only {distinct} distinct token{'s' * (distinct > 1)}" if distinct < 4 else ""
    return Outcome("differs", "batched", f"prompts {wrong}") if wrong else Outcome("exact", "batched", note)
