"""Where a step reads embeddings: in the model's file, or in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tgi_backend_cpu.building import VARIANTS
from transformers import AutoModelForCausalLM

from tests.cpu.conftest import need
from tests.engine.tiny_models import Schedule, open_cpu, save_tiny
from tgi_core.backend import EMPTY, WarmupPlan

VOCAB, HIDDEN = 1 << 14, 72
"""Rows that are no multiple of a register, in more pages than a step may map."""
PLAN = WarmupPlan(max_rows=4, max_row_tokens=512, max_step_tokens=256, num_blocks=64)
SPREAD = tuple(range(3, VOCAB, VOCAB // 200))


def saved(folder: Path, dtype: torch.dtype) -> Path:
    """A model in a file of that dtype."""
    shape = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    save_tiny("llama", folder, **shape)
    AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).save_pretrained(folder)
    return folder


def mapped_bytes(file: Path) -> int:
    """Bytes of a file that this process has mapped and touched."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            inside = line.endswith(str(file))
        elif inside and name == "Rss:":
            found += 1024 * int(rest[0])
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_are_read_without_mapping_them(dtype: str, tmp_path: Path) -> None:
    """Prompts with tokens from all over the vocabulary leave the file unmapped, and give the numbers that an embedding in memory gives."""
    need(*VARIANTS)
    folder = saved(tmp_path, getattr(torch, dtype))
    session, capacity = open_cpu(folder, PLAN, dtype=dtype, quantize="int8")
    runner: Any = session.implementation.runner
    assert runner.packed.model.embedding is None

    def logprobs(id: int) -> list[float]:
        step = session.prefill((Schedule(session, capacity).request(id, SPREAD, len(SPREAD)),), EMPTY, ())
        return session.rows(session.decode((step.handle,), ())).rows[0].logprobs

    found = logprobs(1)
    assert mapped_bytes(folder / "model.safetensors") < VOCAB * HIDDEN // 4
    kept = runner.packed.embedding.clone()
    runner.packed.model.embedding = kept.data_ptr()
    session.clear(None)
    assert logprobs(2) == found


@pytest.mark.parametrize(("stored", "quantize"), [(torch.float32, "int8"), (torch.bfloat16, "")])
def test_where_it_is_in_memory(stored: torch.dtype, quantize: str, tmp_path: Path) -> None:
    """A file of float32 cannot be read as bfloat16; and where no weight is quantized, speed counts more than memory."""
    need(*VARIANTS)
    session, _ = open_cpu(saved(tmp_path, stored), PLAN, dtype="bfloat16", quantize=quantize)
    runner: Any = session.implementation.runner
    assert runner.packed.model.embedding == runner.packed.embedding.data_ptr()
