"""Reasons of the tables in words of this project: why single types are not tested, and no texts of Python's exceptions."""

from __future__ import annotations

import re

_CANNOT = "transformers itself builds or runs no model of this type with so few, so narrow layers"
_RAISES = re.compile(r"(?:: |^)\w+(?:Error|Exception): .*")

_DRAFTS = "it drafts from the hidden states and the cache of another model, and generates nothing by itself"
_MUSIC = "it generates codes of music, several at a time; the config of this type describes the whole model and not its decoder"

REASONS = {
    "blt": "transformers' `generate` makes it a cache for the layers that its config counts, and this config counts none: those are in "
    "the configs of its four parts",
    "dots3_note": "transformers fills in settings of 42 layers for this config, and refuses them when the model has fewer; "
    "its text model is `dots3_note_text`",
    "gemma3n": "its vision tower is a model of the package timm, which is not part of this engine; its text model is `gemma3n_text`",
    "gemma4_assistant": _DRAFTS,
    "gemma4_unified_assistant": _DRAFTS,
    "musicgen": _MUSIC,
    "musicgen_melody": _MUSIC,
}
"""By type; used only where transformers itself fails."""


def stated(model_type: str, note: str) -> str:
    """A note on a type without the text of an exception. It may begin with `transformers: ` where that fails by itself."""
    if note.startswith("transformers: "):
        return REASONS.get(model_type, _CANNOT)
    parts = [_RAISES.sub("", part) for part in note.split("; ")]
    kept = "; ".join(part for part in parts if part)
    return kept or ("its code fails in steps of this engine" if note else "")
