"""Prompts with images, before and after they are tokenized."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MultimodalPrompt:
    """A text with images, before it is tokenized. `images` are as the client sent them, encoded.

    They go between the `texts`; a single text already has the model's placeholder where each image goes. `special`: with the tokens that
    the tokenizer adds.
    """

    texts: tuple[str, ...]
    images: tuple[bytes, ...]
    special: bool


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Its token ids, and for each image where its placeholders begin and end (exclusive) among them."""

    ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
