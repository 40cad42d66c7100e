"""Detect the watermark of `watermark: true` in a text: `python scripts/detect_watermark.py --tokenizer DIRECTORY FILE`.

FILE (- for standard input) holds the generated text, or with --ids its token ids as a JSON list. Prints z: how many standard deviations the
number of green tokens lies above what chance gives.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tgi_core.backend.watermark import z_score
from tgi_core.model_sizes import named_vocab_size
from tgi_core.tokenizer import Tokenizer


def main() -> None:
    """Read the text and print its score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument(
        "--tokenizer", type=Path, required=True, help="Directory of the model, with config.json and tokenizer.json."
    )
    parser.add_argument("--gamma", type=float, default=0.5, help="The server's --watermark-gamma.")
    parser.add_argument("--ids", action="store_true", help="FILE is a JSON list of token ids.")
    parser.add_argument(
        "--distinct", action="store_true", help="Count each pair of tokens once, for texts that repeat themselves."
    )
    given = parser.parse_args()
    text = sys.stdin.read() if given.file == "-" else Path(given.file).read_text(encoding="utf-8")
    vocab_size = named_vocab_size(given.tokenizer)
    if vocab_size is None:
        sys.exit(f"{given.tokenizer}/config.json does not name the vocab_size")
    ids = json.loads(text) if given.ids else Tokenizer.load(given.tokenizer).encode(text, add_special_tokens=False).ids
    try:
        score = z_score(ids, vocab_size, given.gamma, given.distinct)
    except ValueError as error:
        sys.exit(f"{given.file}: {error}")
    print(f"z {score:.2f} of {len(ids)} tokens")


if __name__ == "__main__":
    main()
