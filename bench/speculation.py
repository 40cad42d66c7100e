"""Cost and gain of drafts on this CPU, through the server's own parts in this process.

    python bench/speculation.py [fixed] [adaptive] [copying] [--model DIR] [--drafts 4] [--rates 0 0.3 0.6 0.9]
                                [--batch 1 4 8 32] [--steps 24] [--rounds 5] [--json OUT]

`fixed` runs the same number of drafts in every step, through the backend alone; `adaptive` as many as the scheduler thinks pay, from a
source that is right at a given rate; `copying` are prompts of which the demo model's answers repeat much, and some of which they repeat
nothing. Whatever is compared takes turns in this process, so that noise affects both. Without --model, `fixed` and `adaptive` create a
Llama in SmolLM2-135M's shape with random bfloat16 weights in the user's cache directory.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tgi_backend_cpu import plugin

plugin.set_up_openmp()  # as the shard does, before importing torch
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.random_model import make
from bench.speculating import adaptive, copying, fixed

PARTS = ("fixed", "adaptive", "copying")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.0, 0.3, 0.6, 0.9])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 8, 32])
    parser.add_argument("--steps", type=int, default=24, help="fixed: steps with drafts, and as many without, per measurement")
    parser.add_argument("--rounds", type=int, default=5, help="adaptive, copying: times that each is measured")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for part in options.parts or PARTS:
        if part == "fixed":
            steps = fixed.measure(options.model or make("135m"), options.batch, options.rates, options.drafts, options.steps)
            found[part], text = [asdict(each) for each in steps], fixed.report(steps)
        elif part == "adaptive":
            chosen = adaptive.measure(options.model or make("135m"), options.batch, options.rates, options.drafts, options.rounds)
            found[part], text = [asdict(each) for each in chosen], adaptive.report(chosen)
        elif part == "copying":
            copied = copying.measure(options.rounds)
            found[part], text = [asdict(each) for each in copied], copying.report(copied)
        else:
            parser.error(f"{part}: the parts are {', '.join(PARTS)}")
        print(f"{part}\n{text}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
