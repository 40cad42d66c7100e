"""Reasons of the tables in words of this project: why single types are not tested, and no texts of Python's exceptions."""

from __future__ import annotations

import re

_CANNOT = "transformers refuses or cannot run the small config that these tests make of this type"
_DRAFTS = "it drafts from the hidden states and the cache of another model, and generates nothing by itself"
_MUSIC = "it generates codes of music, several at a time; the config of this type describes the whole model and not its decoder"
_TIMM = "its vision tower is a model of the package timm, which is not part of this engine"
_OLD = "transformers lists it as deprecated, and no longer runs it"
_IMAGE = "transformers generates nothing for it without an image"

REASONS = {
    "blip": _IMAGE,
    "blip-2": _IMAGE,
    "blt": "transformers' `generate` makes it a cache for the layers that its config counts, and this config counts none: those are in "
    "the configs of its four parts",
    "dots3_note": "transformers fills in settings of 42 layers for this config, and refuses them when the model has fewer; "
    "its text model is `dots3_note_text`",
    "evolla": "transformers' auto class does not build it",
    "fast_vlm": _TIMM,
    "gemma3n": f"{_TIMM}; its text model is `gemma3n_text`",
    "gemma4_assistant": _DRAFTS,
    "gemma4_unified_assistant": _DRAFTS,
    "idefics": _IMAGE,
    "inkling_mm_model": "transformers needs the package scipy to build it, which is not part of this engine",
    "instructblip": _IMAGE,
    "instructblipvideo": _IMAGE,
    "kosmos-2": _IMAGE,
    "mega": _OLD,
    "musicgen": _MUSIC,
    "musicgen_melody": _MUSIC,
    "open-llama": _OLD,
    "perception_lm": _TIMM,
    "pi0": "it generates actions of a robot, and no text",
    "pix2struct": _IMAGE,
    "pp_formulanet": _IMAGE,
    "prophetnet": "these tests set its number of layers by a field that its config refuses",
    "qdqbert": _OLD,
    "shieldgemma2": "it classifies images, and generates no text",
    "speech_to_text_2": _OLD,
    "transfo-xl": _OLD,
    "udop": _IMAGE,
    "vision-encoder-decoder": _IMAGE,
    "xlm-prophetnet": _OLD,
}
"""By type; used where transformers itself fails, where a checkpoint lacks tensors, and where tokens differ."""

_OURS = re.compile(r"\b(?:InvalidModel|NotRagged|Unsupported): ")
_RAISES = re.compile(r"(?:: |^)\w+(?:Error|Exception): .*")


def stated(model_type: str, note: str) -> str:
    """A note on a type in words of ours: without the text of an exception, or the path of a file. It may begin with `transformers: `
    where that fails by itself."""
    if note.startswith("transformers: ") or ": missing keys" in note:
        return REASONS.get(model_type, _CANNOT)
    if note.startswith("prompts ") and model_type in REASONS:
        return REASONS[model_type]
    parts = [_RAISES.sub("", part) for part in _OURS.sub("", note).split("; ")]
    kept = "; ".join(part for part in parts if part)
    return kept or ("its code fails in steps of this engine" if note else "")
