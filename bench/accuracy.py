"""Error of bfloat16 against float32: the CPU backend and transformers, teacher-forced on the same tokens.

    python -m bench.accuracy [MODEL] [--tokens 128] [--rows 8]

The reference is transformers in float32. Both engines run the same tokens in bfloat16, ours over KV caches of 8 bits as well. For each
engine, the table shows the root mean square error of the logits and the share of positions whose likeliest token matches the reference.
Without MODEL, it runs the demo model on its model card, and a Llama in SmolLM2-135M's shape with random weights.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bench.random_model import make
from tgi_core.backend import OpenOptions, Request, WarmupPlan
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.model_files import DEMO, read_json

Prompts = list[list[int]]


@dataclass(frozen=True, slots=True)
class Errors:
    """Error of an engine's logits: `rms` is the root mean square error, `agreement` the share of positions with the same argmax."""

    rms: float
    agreement: float


def errors(found: Tensor, truth: Tensor) -> Errors:
    """Compare logits [positions, vocabulary] with the reference."""
    agreement = (found.argmax(-1) == truth.argmax(-1)).double().mean()
    return Errors(float((found.double() - truth.double()).square().mean().sqrt()), float(agreement))


def our_logits(model: Path, prompts: Prompts, dtype: str, cache_dtype: str = "auto") -> Tensor:
    """Logits [positions, vocabulary] of the CPU backend's runner: one token of each row per step."""
    from tgi_backend_cpu import plugin

    opened = plugin.backend_open(OpenOptions(str(model), dtype, cache_dtype=cache_dtype), _silent)
    tokens = sum(map(len, prompts))
    longest = max(map(len, prompts))
    capacity = opened.warmup(
        WarmupPlan(max_rows=len(prompts), max_row_tokens=longest, max_step_tokens=tokens, window_blocks=0), _silent
    )
    count = -(-longest // capacity.groups[0].block_size)
    rows = []
    for i, prompt in enumerate(prompts):
        blocks = list(range(1 + i * count, 1 + (i + 1) * count))
        request = Request(i, tuple(prompt), len(prompt), 0, (tuple(blocks),), len(prompt))
        rows.append(RowState(request, prompt, 0, (blocks,)))
    found: list[list[Tensor]] = [[] for _ in prompts]
    for start in range(longest):
        going = [i for i, prompt in enumerate(prompts) if start < len(prompt)]
        logits = opened.runner.run([RowInput(rows[i], start, 1, yields=True) for i in going])
        for i, last in zip(going, logits.last.clone(), strict=True):
            found[i].append(last)
    return torch.stack([each for row in found for each in row])


def transformers_logits(model: Path, prompts: Prompts, dtype: torch.dtype) -> Tensor:
    """Logits [positions, vocabulary] of transformers, computed row by row."""
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
    with torch.inference_mode():
        return torch.cat([loaded(torch.tensor([prompt])).logits[0].float() for prompt in prompts])


def compare(model: Path, prompts: Prompts) -> dict[str, Errors]:
    """Errors in bfloat16, by engine."""
    truth = transformers_logits(model, prompts, torch.float32)
    return {
        "ours": errors(our_logits(model, prompts, "bfloat16"), truth),
        "int8 cache": errors(our_logits(model, prompts, "bfloat16", "int8"), truth),
        "e4m3 cache": errors(our_logits(model, prompts, "bfloat16", "float8_e4m3fn"), truth),
        "transformers": errors(transformers_logits(model, prompts, torch.bfloat16), truth),
    }


def demo_prompts(rows: int, tokens: int) -> Prompts:
    """Rows of tokens from the demo model's card."""
    from tokenizers import Tokenizer

    text = (DEMO / "README.md").read_text(encoding="utf-8")
    ids = Tokenizer.from_file(str(DEMO / "tokenizer.json")).encode(text).ids
    return [ids[start : start + tokens] for start in range(0, min(rows * tokens, len(ids) - 1), tokens)]


def random_prompts(rows: int, tokens: int, vocab: int) -> Prompts:
    """Rows of random tokens."""
    return torch.randint(vocab, (rows, tokens), generator=torch.Generator().manual_seed(0)).tolist()


def _silent(what: str, done: int, total: int, unit: str) -> None:
    """Ignore progress."""


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="a model directory")
    parser.add_argument("--tokens", type=int, default=128, help="per row")
    parser.add_argument("--rows", type=int, default=8)
    options = parser.parse_args()
    from transformers.utils.logging import disable_progress_bar

    if options.model:
        vocab = read_json(options.model / "config.json")["vocab_size"]
        cases = {options.model: random_prompts(options.rows, options.tokens, vocab)}
    else:
        cases = {
            DEMO: demo_prompts(options.rows, options.tokens),
            make(): random_prompts(options.rows, options.tokens, 49152),
        }
    disable_progress_bar()
    print("model                engine        rms of logits' errors   same likeliest token")
    for model, prompts in cases.items():
        for engine, found in compare(model, prompts).items():
            print(f"{model.name:20} {engine:12} {found.rms:20.5f} {found.agreement:22.2%}")


if __name__ == "__main__":
    main()
