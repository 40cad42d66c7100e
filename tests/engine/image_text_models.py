"""Tiny random models of transformers' auto class for images and text: answers to texts, and to images where there is a tiny processor."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, PretrainedConfig

from tests.engine import image_models
from tests.engine.test_images import TEXTS, Opened
from tests.engine.tiny_configs import VOCAB, tiny_config
from tests.engine.tiny_models import ANY_ERROR, TRANSFORMERS, Outcome, greedy_tokens, open_cpu, outcome_of, scatter, short
from tgi_core.backend import BackendError, Feature

TORCHVISION = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "smolvlm", "internvl", "mistral3"})
"""Types whose processor needs it."""


def compare(model_type: str, folder: Path) -> Outcome:
    """Make, run and compare one type; never raises for what a model's code does."""
    logging.disable(logging.WARNING)
    if model_type not in image_models.FAMILIES:
        return replace(_texts(model_type, folder, save_tiny), images="not tested")
    if model_type in TORCHVISION and find_spec("torchvision") is None:
        return Outcome("unsupported", "", "its processor needs torchvision, which is not installed", "not tested")
    outcome = _texts(model_type, folder, image_models.save_model)
    verdict, note = _images(folder)
    return replace(outcome, images=verdict, note="; ".join(each for each in (outcome.note, note) if each))


def save_tiny(model_type: str, folder: Path) -> Path:
    """Write a random checkpoint of a type, whose special tokens are in its vocabulary, and return its directory."""
    torch.manual_seed(0)
    config = tiny_config(model_type)
    _place_tokens(config)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    scatter(model)
    model.save_pretrained(folder)
    return folder


def _place_tokens(config: PretrainedConfig) -> None:
    """Give tokens that stand for images ids of their own at the end of the vocabulary, and axes of positions a share of narrow heads."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if rope:
        rope["mrope_section"] = [4, 2, 2]
    names = [
        name
        for name in vars(config)
        if name.endswith(("_token_id", "_token_index")) and not name.startswith(("pad", "bos", "eos"))
    ]
    for place, name in enumerate(sorted(names)):
        if isinstance(getattr(config, name), int):
            setattr(config, name, VOCAB - 1 - place)
    for name in config.sub_configs:
        if isinstance(inside := getattr(config, name, None), PretrainedConfig):
            _place_tokens(inside)


def _texts(model_type: str, folder: Path, save: Callable[[str, Path], Path]) -> Outcome:
    """Text alone, by the schedule of the other tables."""
    try:
        save(model_type, folder)
        AutoConfig.from_pretrained(folder)
        expected = greedy_tokens(AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32))
    except ANY_ERROR as error:
        return Outcome("unsupported", "", f"{TRANSFORMERS}: {short(error)}")
    return outcome_of(folder, expected)


def _images(folder: Path) -> tuple[str, str]:
    """Whether texts with images get the tokens of `generate`, and why not."""
    try:
        session, _ = open_cpu(folder)
    except BackendError:
        return "refused", ""
    able = session.capabilities()
    session.close()
    if Feature.MEDIA not in able.features:
        (reason,) = (kernel.reason for kernel in able.kernels if kernel.part == "images")
        return "refused", reason.replace("NotRagged: ", "").replace("|", "/")
    opened = Opened(folder)
    try:
        same = all(opened.alone(text) == opened.generated(text) for text, _ in TEXTS)
        return ("exact", "") if same else ("differ", "")
    finally:
        opened.session.close()
