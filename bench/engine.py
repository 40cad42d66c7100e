"""Engine speed on this CPU: native kernels, the same engine on torch only or with weights rounded to int8, int4 or fp8, transformers'
`generate`, and the machine's limits.

    python bench/engine.py [MODEL] [--rounds 3] [--batch 1 8 32] [--against torch generate int8 int4 fp8] [--neighbour]

Drives the CPU backend through the session hooks, as the server does. Each round measures the engines in turn at each batch size, so
that a noisy neighbour affects all of them. The table shows medians, and CPU time per step, which a neighbour affects least. `of
bf16 read` is the memory bandwidth needed to read every weight at 16 bits, relative to the machine's: an engine that stores fewer
bits can exceed 100 %. `of own read` counts the bytes that our engine stores, so 100 % is its memory bound; weights that fit in a
cache exceed it. `--neighbour` keeps one core busy from another process. Without MODEL, creates a Llama in SmolLM2-135M's
shape with random bfloat16 weights in the user's cache directory.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

from tgi_backend_cpu.plugin import set_up_openmp

set_up_openmp()  # as the shard does, before importing torch
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from bench.ceilings import gemm_rate, read_bandwidth
from bench.neighbour import neighbour
from bench.peers.engines.ours import Ours
from bench.peers.engines.protocol import Plan
from bench.random_model import make

PROMPT, NEW = 128, 64

AGAINST = {"torch": ("torch", ""), "int8": ("auto", "int8"), "int4": ("auto", "int4"), "fp8": ("auto", "fp8")}
"""Variants of the engine itself: which kernels, and what weights are rounded to."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second over all rows; `cpu` is the CPU time of one decode step in seconds."""

    prefill: float
    decode: float
    cpu: float

    def seconds(self, rows: int) -> float:
        """Duration of the entire batch, in seconds."""
        return rows * PROMPT / self.prefill + rows * (NEW - 1) / self.decode


class Engine(Protocol):
    """An engine to measure."""

    def run(self, prompts: list[list[int]]) -> Speed:
        """Prefill all prompts, then decode step by step."""


class OurEngine:
    """The CPU backend, driven through its session."""

    def __init__(self, model: Path, rows: int, kernels: str, quantize: str = "") -> None:
        from tgi_backend_cpu.building import CHOICE

        os.environ[CHOICE] = kernels
        self._engine = Ours(Plan(model, rows, PROMPT + NEW, rows * PROMPT, quantize))
        self.runner, self.session = self._engine.runner, self._engine.session
        self.parts: dict[int, dict[str, float]] = {}

    def run(self, prompts: list[list[int]]) -> Speed:
        """Prefill all prompts in one step, then decode step by step."""
        start = time.perf_counter()
        self._engine.start(prompts, NEW)
        first, parts, used = time.perf_counter(), self._part_times(), time.process_time()
        self._engine.go_on(NEW - 1)
        end, used = time.perf_counter(), time.process_time() - used
        self._engine.end()
        self._note_parts(len(prompts), parts)
        return Speed(len(prompts) * PROMPT / (first - start), len(prompts) * (NEW - 1) / (end - first), used / (NEW - 1))

    @property
    def num_bytes(self) -> int:
        """Bytes of weights that a step reads; 0 if they are not packed."""
        packed = getattr(self.runner, "packed", None)
        return 0 if packed is None else int(packed.num_bytes)

    def _part_times(self) -> dict[str, int]:
        return self.runner.part_times() if hasattr(self.runner, "part_times") else {}

    def _note_parts(self, rows: int, before: dict[str, int]) -> None:
        """Milliseconds per decode step: for each part, the best of all runs."""
        best = self.parts.setdefault(rows, {})
        for name, value in self._part_times().items():
            best[name] = min(best.get(name, float("inf")), (value - before[name]) / (NEW - 1) / 1e6)


class Generate:
    """transformers' `generate`, greedy."""

    def __init__(self, model: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
        self.model.generation_config.eos_token_id = None

    def run(self, prompts: list[list[int]]) -> Speed:
        """Time prefill alone, then everything; the difference is decode."""
        (one, one_cpu), (all, all_cpu) = self._seconds(prompts, 1), self._seconds(prompts, NEW)
        decode = len(prompts) * (NEW - 1) / (all - one)
        return Speed(len(prompts) * PROMPT / one, decode, (all_cpu - one_cpu) / (NEW - 1))

    def _seconds(self, prompts: list[list[int]], count: int) -> tuple[float, float]:
        ids = torch.tensor(prompts)
        start, used = time.perf_counter(), time.process_time()
        self.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, pad_token_id=0)
        return time.perf_counter() - start, time.process_time() - used


def middle(speeds: list[Speed]) -> Speed:
    """Median speeds."""
    return Speed(median(s.prefill for s in speeds), median(s.decode for s in speeds), min(s.cpu for s in speeds))


Results = dict[int, dict[str, Speed]]


def measure(engines: dict[str, Engine], vocab: int, batches: list[int], rounds: int) -> Results:
    """Measure the engines in turns; speeds by batch size and engine."""
    prompts = [[(31 * row + 7 * i) % vocab for i in range(PROMPT)] for row in range(max(batches))]
    for engine in engines.values():
        engine.run(prompts[:1])
    found: dict[int, dict[str, list[Speed]]] = {batch: {name: [] for name in engines} for batch in batches}
    for _ in range(rounds):
        for batch in batches:
            for name, engine in engines.items():
                found[batch][name].append(engine.run(prompts[:batch]))
    return {batch: {name: middle(speeds) for name, speeds in row.items()} for batch, row in found.items()}


def report(model: Path, engines: dict[str, Engine], results: Results) -> str:
    """Print the table."""
    stored = {name: engine.num_bytes for name, engine in engines.items() if isinstance(engine, OurEngine)}
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    bandwidth, gemm = read_bandwidth(), gemm_rate()
    machine = f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}"
    lines = [
        f"{model.name}: {PROMPT} tokens in, {NEW} out, bfloat16, {machine}",
        f"machine: reads {bandwidth / 1e9:.1f} GB/s, multiplies {gemm / 1e9:.0f} GFLOP/s",
        "batch engine   | decode tok/s   of bf16 read  of own read  CPU ms/step | prefill tok/s  of GEMM | slower: decode, prefill, whole",
    ]
    for batch, row in results.items():
        ours = row["ours"]
        for name, speed in row.items():
            steps, computed = speed.decode / batch, speed.prefill * weights / gemm
            read, own = steps * weights / bandwidth, steps * stored.get(name, 0) / bandwidth
            ratios = (ours.decode / speed.decode, ours.prefill / speed.prefill, speed.seconds(batch) / ours.seconds(batch))
            lines.append(
                f"{batch:5} {name:8} | {speed.decode:12.1f}  {read:13.0%}  {own:11.0%}  {speed.cpu * 1e3:11.2f} "
                f"| {speed.prefill:13.0f}  {computed:7.0%} | " + "  ".join(f"{ratio:5.2f}x" for ratio in ratios)
            )
    return "\n".join(lines)


def report_parts(engine: OurEngine) -> str:
    """Print the engine's kernels and the breakdown of a decode step."""
    lines = [f"{kernel.part}: {kernel.name} ({kernel.reason})" for kernel in engine.session.capabilities().kernels]
    for batch, parts in engine.parts.items():
        if parts:
            lines.append(
                f"batch {batch}, ms/step: " + "  ".join(f"{name} {value:.2f}" for name, value in parts.items() if value > 0)
            )
    return "\n".join(lines)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="a model directory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--against", nargs="*", choices=[*AGAINST, "generate"], default=["torch", "generate"])
    parser.add_argument("--neighbour", action="store_true", help="keep one core busy from another process")
    options = parser.parse_args()
    model, rows = options.model or make(), max(options.batch)
    ours = OurEngine(model, rows, os.environ.get("TGI_CPU_KERNELS", "auto"))
    engines: dict[str, Engine] = {"ours": ours}
    engines |= {name: OurEngine(model, rows, *how) for name, how in AGAINST.items() if name in options.against}
    if "generate" in options.against:
        engines["generate"] = Generate(model)
    with neighbour(options.neighbour):
        results = measure(engines, ours.session.capabilities().vocab_size, options.batch, options.rounds)
    print(report(model, engines, results), report_parts(ours), sep="\n")


if __name__ == "__main__":
    main()
