"""Prompts of a given number of tokens."""

from __future__ import annotations

import json
import random
from functools import cache

from tgi_core.model_files import DEMO


@cache
def words() -> list[tuple[int, str]]:
    """Tokens that are a word preceded by a space, so that text made of them encodes to one token per word."""
    vocab: dict[str, int] = json.loads((DEMO / "tokenizer.json").read_text())["model"]["vocab"]
    return [
        (id, f" {token[1:]}") for token, id in vocab.items() if token[0] == "Ġ" and token[1:].isascii() and token[1:].isalpha()
    ]


def prompt(seed: str, length: int) -> tuple[list[int], str]:
    """Token ids of a prompt and their text, unique per seed, so that no engine has it cached."""
    chosen = random.Random(seed).choices(words(), k=length)
    return [id for id, _ in chosen], "".join(text for _, text in chosen)
