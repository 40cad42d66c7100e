"""Train the bundled demo model, or check one.

    python scripts/train_demo_model.py --out tgi_core/demo --seed 0     about 20 minutes on 2 cores
    python scripts/train_demo_model.py --check tgi_core/demo            about 1 minute

The script generates the training text itself (demo_corpus) and needs no network. The result depends only on the seed and the number
of steps. After training, the model directory is written file by file, each atomically.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import torch
from demo_corpus import documents
from demo_training.card import Run, card
from demo_training.check import PASS_MARK, check, passed, table
from demo_training.export import llama_config, write_file, write_model
from demo_training.tokenizer import train_tokenizer
from demo_training.training import Recipe, token_stream, train
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

STEPS = 1600
_TOKENIZER_DOCUMENTS = 20_000
_TOKENIZER_STREAM, _TRAINING_STREAM = 1_000_003, 2_000_003
"""Added to the seed, so that tokenizer and training read different text streams."""


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[int, float], None]]:
    """Yield `report(step, loss)`, which shows a bar on a terminal and otherwise prints a line every 50 steps."""
    console, started = Console(), time.monotonic()
    columns = (TextColumn("training"), BarColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("training", total=steps, state="")

        def report(step: int, loss: float) -> None:
            done, seconds = step + 1, time.monotonic() - started
            bar.update(task, completed=done, state=f"step {done} of {steps}, loss {loss:.3f}")
            if not console.is_terminal and (done % 50 == 0 or done == steps):
                print(f"step {done} of {steps}, loss {loss:.3f}, {seconds:.0f} s", flush=True)

        yield report


def make(out: Path, recipe: Recipe, threads: int) -> bool:
    """Train, write the model directory, check the model and write the card. Returns whether the check passed."""
    sample = islice(documents(recipe.seed + _TOKENIZER_STREAM), _TOKENIZER_DOCUMENTS)
    tokenizer = train_tokenizer(document.text for document in sample)
    started, losses = time.monotonic(), []
    stream = token_stream(documents(recipe.seed + _TRAINING_STREAM), tokenizer)
    with _progress(recipe.steps) as report:

        def keep(step: int, loss: float) -> None:
            losses.append(loss)
            report(step, loss)

        model = train(llama_config(), stream, recipe, keep)
    seconds, final = time.monotonic() - started, losses[-50:]
    write_model(out, model, tokenizer)
    size = (out / "model.safetensors").stat().st_size
    run = Run(recipe, model.num_parameters(), size, sum(final) / len(final), seconds, threads)
    scores = check(out, recipe.seed)
    write_file(out / "README.md", card(run, scores).encode())
    print("\n".join(table(scores)))
    return passed(scores)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="train a model and write it to this directory")
    what.add_argument("--check", type=Path, metavar="FOLDER", help="check the model in this directory")
    parser.add_argument("--seed", type=int, default=0, help="seed of the text and the weights (default 0)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"training steps (default {STEPS}); use 100 for a dry run")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    parser.add_argument(
        "--precision", choices=("bfloat16", "float32"), default="bfloat16", help="precision of matrix products in training"
    )
    return parser.parse_args()


def main() -> int:
    """Run. Exits with status 1 if fewer than 95 % of the taught facts and questions are answered correctly."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    if arguments.check:
        scores = check(arguments.check, arguments.seed)
        print("\n".join(table(scores)))
        good = passed(scores)
    else:
        recipe = Recipe(arguments.seed, arguments.steps, half=arguments.precision == "bfloat16")
        good = make(arguments.out, recipe, arguments.threads)
    print(f"{'passed' if good else 'failed'}: the pass mark is {PASS_MARK:.0%} of the taught facts and questions")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
