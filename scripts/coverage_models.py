"""Tests which of transformers' causal language models this engine runs token for token, and writes docs/models.md; with
`--encoder-decoders`, which of its text models with an encoder and a decoder, and writes docs/encoder-decoder-models.md; with `--images`,
which of its models for images and text, and writes docs/image-text-models.md.

Each model type gets a tiny checkpoint with random float32 weights. Three prompts of different lengths run through the CPU backend's
session hooks on a ragged schedule (chunked if the session supports it, with rows joining midway and one leaving early), and the
greedy tokens are compared with transformers' `generate`. Each type runs in a separate process with a time limit. With types, only their
lines of an output that exists are replaced.

    python -m scripts.coverage_models [TYPE ...] [--encoder-decoders | --images] [--output docs/models.md] [--seconds 180] [--workers 2]
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from tgi_backend_cpu import kit, plugin
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from scripts.coverage_pages import CAUSAL, ENCODER_DECODERS, IMAGES, Line
from scripts.coverage_reasons import stated
from tests.engine import encoder_decoders, image_text_models
from tests.engine.tiny_models import Outcome, compare

PRELOADED = (kit, plugin)
"""Imported before forking, so that children start quickly."""

ORDER = ("exact", "differs", "unsupported")


Compare = Callable[[str, Path], Outcome]


def in_child(model_type: str, seconds: float, compared: Compare = compare) -> Line:
    """Run one comparison in a forked process, to isolate crashes and hangs."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    start = time.monotonic()
    child = context.Process(target=_child, args=(model_type, sending, compared))
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


def _child(model_type: str, sending: Connection, compared: Compare) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        sending.send(compared(model_type, Path(folder)))


def encoder_decoder_types() -> list[str]:
    """Text models with an encoder and a decoder: of the others in transformers' table, prompts are audio."""
    names = [name for name in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES if name != "encoder-decoder"]
    return sorted(name for name in names if CONFIG_MAPPING[name]().is_encoder_decoder)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", metavar="TYPE", help="model types; default: all that transformers knows")
    parser.add_argument("--encoder-decoders", action="store_true", help="text models with an encoder and a decoder")
    parser.add_argument("--images", action="store_true", help="models for images and text")
    parser.add_argument("--output", type=Path, help="file to write the table to, instead of standard output")
    parser.add_argument("--seconds", type=float, default=180, help="time limit per type")
    parser.add_argument("--workers", type=int, default=2, help="number of types to run concurrently")
    options = parser.parse_args()
    compared, page, every = compare, CAUSAL, sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    if options.encoder_decoders:
        compared, page, every = encoder_decoders.compare, ENCODER_DECODERS, encoder_decoder_types()
    elif options.images:
        compared, page, every = image_text_models.compare, IMAGES, sorted(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    types = options.types or every
    with ThreadPoolExecutor(options.workers) as pool:
        lines = list(pool.map(lambda name: report(in_child(name, options.seconds, compared)), types))
    found = {line.model_type: _in_words(line) for line in lines}
    if options.types and options.output and options.output.exists():
        found = {line.model_type: line for line in page.read(options.output)} | found
    text = page.text(sorted(found.values(), key=lambda line: line.model_type))
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    else:
        print(text)


def _in_words(line: Line) -> Line:
    return replace(line, outcome=replace(line.outcome, note=stated(line.model_type, line.outcome.note)))


def report(line: Line) -> Line:
    """Print progress."""
    print(
        f"{line.seconds:6.1f} s  {line.model_type:30} {line.outcome.verdict:12} {line.outcome.path:10} {line.outcome.note}",
        flush=True,
    )
    return line


if __name__ == "__main__":
    main()
