"""Speed of a model of states on this CPU: rows batched by the engine, and transformers' `generate`, alone and batched.

    python -m bench.states [--rounds 3] [--batch 8]

Without attention, in the shape of mamba-130m (24 layers, 768 wide), with random bfloat16 weights in the user's cache directory. Each
round measures all three in turn. A row reads 128 tokens and makes 64. Rates are over all rows, and medians; CPU time per decode step is
what a busy machine distorts least.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.engine import NEW, PROMPT, Engine, Generate, OurEngine, Speed, measure
from bench.random_model import cache_folder

SHAPE = {"hidden_size": 768, "num_hidden_layers": 24, "state_size": 16, "vocab_size": 50280}


def make() -> Path:
    """The directory of the model, created on first use (260 MB)."""
    folder = cache_folder() / "random-mamba-130m"
    if not (folder / "config.json").exists():
        import torch
        from transformers import MambaConfig, MambaForCausalLM

        torch.manual_seed(0)
        config = MambaConfig(**SHAPE, eos_token_id=None, bos_token_id=None, pad_token_id=None)
        MambaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


class OneByOne:
    """An engine that gets one prompt at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(self, prompts: list[list[int]]) -> Speed:
        """The speed of the first; the others take as long."""
        return self._engine.run(prompts[:1])


def line(name: str, speed: Speed, rows: int) -> str:
    """A row of the table."""
    whole = rows * (PROMPT + NEW) / speed.seconds(rows)
    return f"{name:28} | {speed.decode:12.1f} | {speed.prefill:13.0f} | {whole:11.0f} | {speed.cpu * 1e3:15.1f}"


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    model = make()
    ours, generate = OurEngine(model, options.batch, "auto"), Generate(model)
    engines: dict[str, Engine] = {"ours": ours, "generate, alone": OneByOne(generate), "generate, batched": generate}
    speeds = measure(engines, SHAPE["vocab_size"], [options.batch], options.rounds)[options.batch]
    print(f"{model.name}: {options.batch} rows of {PROMPT} tokens in, {NEW} out, bfloat16")
    print(f"{'':28} | decode tok/s | prefill tok/s | whole tok/s | CPU ms per step")
    for name, speed in speeds.items():
        print(line(name, speed, options.batch))
    alone, own = speeds["generate, alone"], speeds["ours"]
    ratios = {
        "decode": own.decode / alone.decode,
        "prefill": own.prefill / alone.prefill,
        "whole": alone.seconds(options.batch) / own.seconds(options.batch),
        "CPU time of a decoded token": alone.cpu / (own.cpu / options.batch),
    }
    print("ours against generate, alone: " + ", ".join(f"{name} {ratio:.1f}x" for name, ratio in ratios.items()))


if __name__ == "__main__":
    main()
