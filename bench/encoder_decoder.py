"""An encoder-decoder's rows together, against transformers' `generate` with one row at a time and with all rows in one batch.

    python bench/encoder_decoder.py [--rows 8] [--prompt 64] [--new 64] [--rounds 3] [--dtype float32]

The model is a T5 of t5-small's shape with random weights. Each round measures all engines in turn, prefill included, so that a noisy
neighbour affects all of them; the table shows medians of tokens per second over all rows, and per second of CPU time, which a neighbour
affects least, both also relative to `generate` with one row.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from tgi_backend_cpu.plugin import set_up_openmp

set_up_openmp()  # as the shard does, before importing torch
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from tgi_backend_cpu import plugin
from transformers import AutoModelForSeq2SeqLM, T5Config

from tgi_core.backend import EMPTY, OpenOptions, Request, WarmupPlan
from tgi_core.backend.session import Session

SMALL = {"vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "n_positions": 512}
"""t5-small, from its config.json."""


def save_small(folder: Path, dtype: torch.dtype) -> None:
    """A random checkpoint that never ends an answer."""
    torch.manual_seed(0)
    config = T5Config(**SMALL, decoder_start_token_id=0, pad_token_id=0, eos_token_id=None, bos_token_id=None)
    model = AutoModelForSeq2SeqLM.from_config(config, dtype=dtype)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)


class Ours:
    """The CPU backend, driven through its session."""

    def __init__(self, folder: Path, dtype: str, rows: int, tokens: int) -> None:
        self._session = Session(plugin.backend_open(OpenOptions(str(folder), dtype), _silent), "cpu")
        self._session.warmup(WarmupPlan(max_rows=rows, max_row_tokens=tokens), _silent)
        self._id = 0

    def __call__(self, prompts: list[list[int]], new: int) -> int:
        """Prefill all prompts in one step, then decode. Returns the number of tokens."""
        requests = []
        for block, prompt in enumerate(prompts, 1):
            self._id += 1
            requests.append(Request(self._id, tuple(prompt), len(prompt), 0, ((block,),), len(prompt)))
        step = self._session.prefill(tuple(requests), EMPTY, ())
        made = sum(len(row.tokens) for row in self._session.rows(step).rows)
        for _ in range(new - 1):
            step = self._session.decode((step.handle,), ())
            made += sum(len(row.tokens) for row in self._session.rows(step).rows)
        self._session.clear(step.handle)
        return made


class Generate:
    """transformers' `generate`, `together` rows at a time."""

    def __init__(self, folder: Path, dtype: torch.dtype, together: int) -> None:
        self._model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=dtype).eval()
        self._together = together

    def __call__(self, prompts: list[list[int]], new: int) -> int:
        """Returns the number of tokens."""
        made = 0
        for first in range(0, len(prompts), self._together):
            ids = torch.tensor(prompts[first : first + self._together])
            options = {"do_sample": False, "num_beams": 1, "max_new_tokens": new, "min_new_tokens": new}
            made += self._model.generate(ids, attention_mask=torch.ones_like(ids), **options)[:, 1:].numel()
        return made


Engines = dict[str, Callable[[list[list[int]], int], int]]


def measure(engines: Engines, prompts: list[list[int]], new: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Tokens per second, and per second of CPU time, by engine."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    for number in range(rounds + 1):
        for name, run in engines.items():
            start, used = time.perf_counter(), time.process_time()
            made = run(prompts, new if number else 2)  # the first round warms up
            if number:
                found[name].append((made / (time.perf_counter() - start), made / (time.process_time() - used)))
    return {name: (median(wall for wall, _ in each), median(cpu for _, cpu in each)) for name, each in found.items()}


def main() -> None:
    """Parse the command line, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 8), ("prompt", 64), ("new", 64), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(1, SMALL["vocab_size"], (options.rows, options.prompt), generator=generator).tolist()
    with tempfile.TemporaryDirectory() as folder:
        save_small(Path(folder), dtype)
        engines = {
            "this engine": Ours(Path(folder), options.dtype, options.rows, options.prompt + options.new),
            "generate, one row": Generate(Path(folder), dtype, 1),
            "generate, all rows": Generate(Path(folder), dtype, options.rows),
        }
        speeds = measure(engines, prompts, options.new, options.rounds)
    alone, alone_cpu = speeds["generate, one row"]
    print(
        f"{options.rows} rows, prompts of {options.prompt}, {options.new} new tokens, {options.dtype}, {torch.get_num_threads()} threads"
    )
    for name, (wall, cpu) in speeds.items():
        print(
            f"{name:20} {wall:8.1f} tokens/s {wall / alone:6.2f} ×  {cpu:8.1f} tokens per second of CPU {cpu / alone_cpu:6.2f} ×"
        )


def _silent(what: str, done: int, total: int, unit: str) -> None:
    """Ignore progress."""


if __name__ == "__main__":
    main()
