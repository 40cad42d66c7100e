"""Models of well-known shapes with random bfloat16 weights and a tokenizer, for benchmarks that do not depend on the text.

They have no end-of-sequence token, so every engine generates exactly the requested number of tokens.
"""

from __future__ import annotations

import json
import os
from itertools import product
from pathlib import Path
from typing import Any

from bench.shapes import SHAPES
from tgi_core.model_files import DEMO

CONTEXT = 8192


def cache_folder() -> Path:
    """Directory outside the repository for the benchmarks' models and programs."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tgi-core" / "bench"


def make(name: str = "135m", folder: Path | None = None) -> Path:
    """Return the directory of a model, created on first use (270 MB, 990 MB)."""
    folder = folder or cache_folder() / f"random-{name}"
    if (folder / "tokenizer.json").exists():
        return folder
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    shape: dict[str, Any] = {**SHAPES[name].config, "max_position_embeddings": CONTEXT, "tie_word_embeddings": True}
    config = AutoConfig.for_model(**shape, eos_token_id=None, bos_token_id=None, pad_token_id=None)
    folder.mkdir(parents=True, exist_ok=True)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    write_tokenizer(folder, SHAPES[name].config["vocab_size"])
    return folder


WRAP, LOOPS_END = 96, 24000
"""Of a model that writes loops: tokens per loop, and the first token that is in none."""


def make_looping(folder: Path | None = None) -> Path:
    """Return the directory of a Llama in SmolLM2-135M's shape that writes token t + 1 after token t, on first use made (330 MB). Tokens
    below `LOOPS_END` loop: after the last one of `WRAP` comes the first. Its layers add nothing, but take as long as others."""
    folder = folder or cache_folder() / "looping-135m"
    if (folder / "tokenizer.json").exists():
        return folder
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    shape: dict[str, Any] = {**SHAPES["135m"].config, "max_position_embeddings": CONTEXT, "tie_word_embeddings": False}
    config = AutoConfig.for_model(**shape, eos_token_id=None, bos_token_id=None, pad_token_id=None)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    before = torch.arange(config.vocab_size) - 1
    before[:LOOPS_END:WRAP] += WRAP
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight[before % config.vocab_size])
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    write_tokenizer(folder, config.vocab_size)
    return folder


def write_tokenizer(folder: Path, size: int) -> None:
    """Write the demo model's tokenizer, padded to `size` with pairs of its tokens, which encoding never produces."""
    parts = json.loads((DEMO / "tokenizer.json").read_text())
    vocab: dict[str, int] = parts["model"]["vocab"]
    special = {token["content"] for token in parts["added_tokens"]}
    plain = [token for token in vocab if token not in special]
    for pair in product(plain, plain):
        if len(vocab) == size:
            break
        vocab.setdefault("".join(pair), len(vocab))
    parts["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT, "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    (folder / "tokenizer.json").write_text(json.dumps(parts, ensure_ascii=False))
