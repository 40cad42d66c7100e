"""Quantizes a model directory."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tgi_core.backend import InvalidModel, Progress
from tgi_core.engine.models.build import ModelSource, read_config
from tgi_core.engine.models.loading import is_rounded
from tgi_core.engine.quantization.stored import StoredWeights, open_weights
from tgi_core.engine.quantizing.layerwise import each_layer
from tgi_core.engine.quantizing.perplexity import perplexity, sampled_rows, text_rows
from tgi_core.engine.quantizing.schemes import QuantizationScheme, Tensors
from tgi_core.engine.quantizing.writing import write_checkpoint
from tgi_core.errors import StartupError
from tgi_core.model_files import read_json

_log = logging.getLogger("tgi_core.engine")

HELD_OUT = 8
"""One of so many rows of text is not used for calibration, but to measure perplexity."""


@dataclass(frozen=True, slots=True)
class Text:
    """Calibration text: rows of `length` tokens, of `ids` read from `source`, or of the model's own if there are none."""

    rows: int = 128
    length: int = 512
    ids: list[int] | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What came of it: the quantized layers, those that could not be and why, bytes and perplexity before and after."""

    layers: int
    left: dict[str, str]
    bytes: tuple[int, int]
    perplexity: tuple[float, float]


def quantize_model(directory: Path, to: Path, scheme: QuantizationScheme, text: Text, progress: Progress) -> Report:
    """Write a quantized copy of a model directory. Raises InvalidModel, StartupError, Unsupported."""
    config = read_config(directory)
    stored = open_weights(directory)
    if stored.format is not None:
        raise InvalidModel(f"{directory}: the model is quantized already")
    _check_target(to)
    model = ModelSource(directory, config, torch.float32).build(progress)
    rows = (
        text_rows(text.ids, text.rows, text.length, text.source)
        if text.ids is not None
        else sampled_rows(model, text.rows, text.length, seed=0)
    )
    held = max(1, rows.shape[0] // HELD_OUT)
    before = perplexity(model, rows[:held])
    layers, left = _quantize(model, stored, scheme, rows[held:], progress)
    if not layers:
        raise InvalidModel(f"{directory}: has no layer that can be quantized ({next(iter(left.values()), 'no linear layers')})")
    after = perplexity(model, rows[:held])
    raw = read_json(directory / "config.json") | {"quantization_config": scheme.settings()}
    to.mkdir(parents=True, exist_ok=True)
    write_checkpoint(directory, to, stored, layers, raw, lambda done, total: progress("writing", done, total, "tensor"))
    return Report(len(layers), left, (stored.checkpoint.num_bytes, open_weights(to).checkpoint.num_bytes), (before, after))


def _check_target(to: Path) -> None:
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise StartupError(f"{to}: is there already and is not an empty directory; give another one")


def _quantize(
    model: PreTrainedModel, stored: StoredWeights, scheme: QuantizationScheme, rows: Tensor, progress: Progress
) -> tuple[dict[str, Tensors], dict[str, str]]:
    """The new tensors by the layer's name in the files, and the layers that stay, with the reason. The model gets the new weights."""
    names = _names(model, stored)
    found: dict[str, Tensors] = {}
    left: dict[str, str] = {}

    def change(name: str, linear: nn.Linear, moments: Tensor | None) -> None:
        if reason := scheme.refusal(*linear.weight.shape):
            left[names[name]] = reason
            _log.warning("%s stays as it is: %s", names[name], reason)
            return
        parts, matrix = scheme.quantize(linear.weight.data.float(), moments)
        found[names[name]] = parts
        linear.weight.data = matrix

    show: Callable[[int, int], None] = lambda done, total: progress("quantizing", done, total, "layer")  # noqa: E731
    if scheme.calibrated:
        each_layer(model, rows, set(names), change, show)
        unseen = names.keys() - {name for name in names if names[name] in found or names[name] in left}
        for name in unseen:
            left[names[name]] = "no calibration text reached it"
    else:
        for number, name in enumerate(names, 1):
            change(name, cast(nn.Linear, model.get_submodule(name)), None)
            show(number, len(names))
    return found, left


def _names(model: PreTrainedModel, stored: StoredWeights) -> dict[str, str]:
    """The linear layers whose weights are tensors of the files, with their names there."""
    prefix = model.base_model_prefix + "."
    found: dict[str, str] = {}
    for name, _ in model.named_parameters():
        if is_rounded(model, name):
            known = next((each for each in (name, name.removeprefix(prefix)) if each in stored.by_name), None)
            if known is not None:
                found[name.removesuffix(".weight")] = known.removesuffix(".weight")
    return found


def describe(report: Report) -> str:
    """The report as JSON, for scripts."""
    return json.dumps(
        {
            "layers": report.layers,
            "left": report.left,
            "bytes_before": report.bytes[0],
            "bytes_after": report.bytes[1],
            "perplexity_before": report.perplexity[0],
            "perplexity_after": report.perplexity[1],
        }
    )
