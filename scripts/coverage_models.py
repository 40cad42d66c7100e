"""Which of transformers' causal language models this engine runs, token for token: writes docs/models.md.

Every type gets a tiny checkpoint with random float32 weights. Three prompts of unequal length go through the CPU backend's
session hooks in a ragged schedule (chunked where the session allows it, joins in the middle, one leaves early) and the greedy tokens are
compared with transformers' own `generate`. Each type runs in a process of its own, with a time limit.

    python -m scripts.coverage_models [TYPE ...] [--output docs/models.md] [--seconds 180] [--workers 2]
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import transformers
from tgi_backend_cpu import kit, plugin
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.engine.tiny_models import Outcome, compare

PRELOADED = (kit, plugin)
"""Loaded before the fork, so that a child starts at once."""

ORDER = ("exact", "differs", "unsupported")


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table."""

    model_type: str
    outcome: Outcome
    seconds: float


def in_child(model_type: str, seconds: float) -> Line:
    """Run one comparison in a forked process, so that a crash or a hang stays its own."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    start = time.monotonic()
    child = context.Process(target=_child, args=(model_type, sending))
    child.start()
    sending.close()
    outcome = Outcome("unsupported", "", f"no result within {seconds:.0f} s")
    if receiving.poll(seconds):
        try:
            outcome = receiving.recv()
        except EOFError:
            outcome = Outcome("unsupported", "", "its process ended without a result")
    child.kill()
    child.join()
    return Line(model_type, outcome, time.monotonic() - start)


def _child(model_type: str, sending: Connection) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        sending.send(compare(model_type, Path(folder)))


def table(lines: list[Line]) -> str:
    """The page, in Markdown."""
    counts = Counter(line.outcome.verdict for line in lines)
    paths = Counter(line.outcome.path for line in lines if line.outcome.verdict == "exact")
    rows = [f"| `{line.model_type}` | {line.outcome.verdict} | {line.outcome.path} | {line.outcome.note} |" for line in lines]
    return "\n".join(
        [
            "# Models",
            "",
            "Made by `scripts/coverage_models.py` on tiny random float32 checkpoints: do not edit. *exact* means that the greedy",
            "tokens of a ragged schedule over the CPU backend equal those of transformers' `generate`. *ragged* is the paged engine with",
            "continuous batching; *own cache* runs one row at a time with the model's own cache: right, but slow.",
            "",
            f"transformers {transformers.__version__}, torch {torch.__version__}: of {len(lines)} types "
            + ", ".join(f"{counts[name]} {name}" for name in ORDER)
            + f" (exact: {paths['ragged']} ragged, {paths['own cache']} own cache).",
            "",
            "| type | result | path | why |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", metavar="TYPE", help="model types; all that transformers knows if none is given")
    parser.add_argument("--output", type=Path, help="write the table here instead of printing it")
    parser.add_argument("--seconds", type=float, default=180, help="time limit per type")
    parser.add_argument("--workers", type=int, default=2, help="types at a time")
    options = parser.parse_args()
    types = options.types or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    with ThreadPoolExecutor(options.workers) as pool:
        lines = list(pool.map(lambda name: report(in_child(name, options.seconds)), types))
    lines.sort(key=lambda line: line.model_type)
    if options.output:
        options.output.write_text(table(lines), encoding="utf-8")
    else:
        print(table(lines))


def report(line: Line) -> Line:
    """Say how far the run is."""
    print(
        f"{line.seconds:6.1f} s  {line.model_type:30} {line.outcome.verdict:12} {line.outcome.path:10} {line.outcome.note}",
        flush=True,
    )
    return line


if __name__ == "__main__":
    main()
