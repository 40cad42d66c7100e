"""Engine speed on this CPU, against transformers' `generate` and against the machine.

    python bench/engine.py [MODEL] [--rounds 3] [--batch 1 8 32]

Drives the CPU backend through the session hooks, as the server does. Every round measures the two engines one after the other at
each batch size, so that a noisy neighbour hits both; the table shows medians. Without MODEL, a Llama of SmolLM2-135M's shape with
random bfloat16 weights is made in the user's cache folder.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tgi_backend_cpu.plugin import set_up_openmp

set_up_openmp()  # as the server's shard does, before torch loads
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from bench.ceilings import gemm_rate, read_bandwidth
from bench.random_model import make
from tgi_core.backend import EMPTY, Capacity, OpenOptions, Request, WarmupPlan
from tgi_core.backend.session import Session

PROMPT, NEW = 128, 64


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second, all rows together."""

    prefill: float
    decode: float

    def seconds(self, rows: int) -> float:
        """How long a whole batch takes."""
        return rows * PROMPT / self.prefill + rows * (NEW - 1) / self.decode


class OurEngine:
    """The CPU backend behind its session."""

    def __init__(self, model: Path, rows: int) -> None:
        from tgi_backend_cpu import plugin

        self.session = Session(plugin.backend_open(OpenOptions(str(model), "bfloat16"), _silent), "cpu")
        plan = WarmupPlan(max_rows=rows, max_row_tokens=PROMPT + NEW, max_step_tokens=rows * PROMPT)
        self.capacity: Capacity = self.session.warmup(plan, _silent)
        self._next_id = 1

    def run(self, prompts: list[list[int]]) -> Speed:
        """Prefill all prompts in one step, then decode step by step."""
        start = time.perf_counter()
        step = self.session.prefill(tuple(self._request(i, prompt) for i, prompt in enumerate(prompts)), EMPTY, ())
        self.session.rows(step)
        first = time.perf_counter()
        for _ in range(NEW - 1):
            step = self.session.decode((step.handle,), ())
            self.session.rows(step)
        end = time.perf_counter()
        self.session.clear(step.handle)
        return Speed(len(prompts) * PROMPT / (first - start), len(prompts) * (NEW - 1) / (end - first))

    def _request(self, row: int, prompt: list[int]) -> Request:
        count = -(-(PROMPT + NEW) // self.capacity.groups[0].block_size)
        self._next_id += 1
        return Request(self._next_id, tuple(prompt), PROMPT, 0, (tuple(range(1 + row * count, 1 + (row + 1) * count)),), PROMPT)


class Generate:
    """transformers' own loop, greedy."""

    def __init__(self, model: Path) -> None:
        self.model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
        self.model.generation_config.eos_token_id = None

    def run(self, prompts: list[list[int]]) -> Speed:
        """Prefill alone, then all of it; the difference is decode."""
        one, all = self._seconds(prompts, 1), self._seconds(prompts, NEW)
        return Speed(len(prompts) * PROMPT / one, len(prompts) * (NEW - 1) / (all - one))

    def _seconds(self, prompts: list[list[int]], count: int) -> float:
        ids = torch.tensor(prompts)
        start = time.perf_counter()
        self.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, pad_token_id=0)
        return time.perf_counter() - start


def _silent(what: str, done: int, total: int, unit: str) -> None:
    """Progress that nobody watches."""


def middle(speeds: list[Speed]) -> Speed:
    """Medians."""
    return Speed(median(s.prefill for s in speeds), median(s.decode for s in speeds))


def measure(model: Path, batches: list[int], rounds: int) -> dict[int, tuple[Speed, Speed]]:
    """Ours and transformers' speeds by batch size, measured in turns."""
    ours, theirs = OurEngine(model, max(batches)), Generate(model)
    vocab = ours.session.capabilities().vocab_size
    prompts = [[(31 * row + 7 * i) % vocab for i in range(PROMPT)] for row in range(max(batches))]
    ours.run(prompts[:1])
    theirs.run(prompts[:1])
    found: dict[int, list[tuple[Speed, Speed]]] = {batch: [] for batch in batches}
    for _ in range(rounds):
        for batch in batches:
            found[batch].append((ours.run(prompts[:batch]), theirs.run(prompts[:batch])))
    return {batch: (middle([a for a, _ in pairs]), middle([b for _, b in pairs])) for batch, pairs in found.items()}


def report(model: Path, results: dict[int, tuple[Speed, Speed]]) -> str:
    """The table."""
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    bandwidth, gemm = read_bandwidth(), gemm_rate()
    machine = f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}"
    lines = [
        f"{model.name}: {PROMPT} tokens in, {NEW} out, bfloat16, {machine}",
        f"machine: reads {bandwidth / 1e9:.1f} GB/s, multiplies {gemm / 1e9:.0f} GFLOP/s",
        "batch | decode tok/s  generate  ratio  weights read | prefill tok/s  generate  ratio  of GEMM | whole",
    ]
    for batch, (ours, theirs) in results.items():
        read = ours.decode / batch * weights / bandwidth
        computed = ours.prefill * 2 * weights / 2 / gemm
        lines.append(
            f"{batch:5} | {ours.decode:12.1f}  {theirs.decode:8.1f}  {ours.decode / theirs.decode:4.2f}x  {read:11.0%} "
            f"| {ours.prefill:13.0f}  {theirs.prefill:8.0f}  {ours.prefill / theirs.prefill:4.2f}x  {computed:6.0%} "
            f"| {theirs.seconds(batch) / ours.seconds(batch):4.2f}x"
        )
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="a model directory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    options = parser.parse_args()
    model = options.model or make()
    print(report(model, measure(model, options.batch, options.rounds)))


if __name__ == "__main__":
    main()
