"""Quantizes a model directory."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tgi_core.backend import InvalidModel, Progress
from tgi_core.engine.models.build import ModelSource, read_config
from tgi_core.engine.models.loading import is_rounded
from tgi_core.engine.quantization.stored import StoredWeights, open_weights
from tgi_core.engine.quantizing.layerwise import SeenLayer, each_layer
from tgi_core.engine.quantizing.perplexity import perplexity, sampled_rows, text_rows
from tgi_core.engine.quantizing.schemes import QuantizationScheme, Tensors
from tgi_core.engine.quantizing.writing import write_checkpoint
from tgi_core.errors import StartupError
from tgi_core.model_files import read_json

_log = logging.getLogger("tgi_core.engine")

HELD_OUT = 8
"""One in this many rows of text is not used for calibration, but to measure perplexity."""


@dataclass(frozen=True, slots=True)
class Text:
    """Calibration text: rows of `length` tokens, of `ids` read from `source`, or of the model's own if there are none."""

    rows: int = 128
    length: int = 512
    ids: list[int] | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """The result: the quantized layers, those that could not be quantized and why, and bytes and perplexity before and after."""

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
    work = _Quantizing(model, stored, scheme)
    work.run(rows[held:], progress)
    if not work.layers:
        raise InvalidModel(
            f"{directory}: has no layer that can be quantized ({next(iter(work.left.values()), 'no linear layers')})"
        )
    after = perplexity(model, rows[:held])
    raw = read_json(directory / "config.json") | {"quantization_config": scheme.settings(list(work.left))}
    to.mkdir(parents=True, exist_ok=True)
    write_checkpoint(directory, to, stored, work.replaced, raw, lambda done, total: progress("writing", done, total, "tensor"))
    return Report(
        len(work.layers), work.left, (stored.checkpoint.num_bytes, open_weights(to).checkpoint.num_bytes), (before, after)
    )


def _check_target(to: Path) -> None:
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise StartupError(f"{to}: is there already and is not an empty directory; give another one")


class _Quantizing:
    """Quantizes the layers of a model, which gets the new weights. `layers` are the tensors by the layer's name in the files, `left` the
    layers that stay, with the reason, `changed` other tensors that have changed, by their names in the files."""

    def __init__(self, model: PreTrainedModel, stored: StoredWeights, scheme: QuantizationScheme) -> None:
        self._model, self._stored, self._scheme = model, stored, scheme
        self._files = _names(model, stored)
        """Names in the files of the model's parameters."""
        self._linears = {name.removesuffix(".weight") for name in self._files if is_rounded(model, name)}
        self.layers: dict[str, Tensors] = {}
        self.left: dict[str, str] = {}
        self.changed: dict[str, Tensor] = {}

    @property
    def replaced(self) -> dict[str, Tensors]:
        """Tensors that replace those of the files."""
        weights = {
            f"{layer}.weight": {f"{layer}.{part}": tensor for part, tensor in parts.items()}
            for layer, parts in self.layers.items()
        }
        return {name: {name: tensor} for name, tensor in self.changed.items()} | weights

    def run(self, rows: Tensor, progress: Progress) -> None:
        """Quantize all layers; `rows` [rows, length] are calibration text."""
        show: Callable[[int, int], None] = lambda done, total: progress("quantizing", done, total, "layer")  # noqa: E731
        if self._scheme.calibrated:
            each_layer(self._model, rows, self._linears, self._prepare, self._change, show)
            for name in self._linears:
                if self._file(name) not in self.layers:
                    self.left.setdefault(self._file(name), "no calibration text reached it")
        else:
            for number, name in enumerate(sorted(self._linears), 1):
                self._change(name, cast(nn.Linear, self._model.get_submodule(name)), None)
                show(number, len(self._linears))

    def _prepare(self, seen: SeenLayer) -> None:
        linears = {name: linear for name, linear in seen.linears.items() if not self._scheme.refusal(*linear.weight.shape)}
        self._scheme.prepare(replace(seen, linears=linears), self._store)

    def _store(self, parameter: nn.Parameter) -> Tensor:
        name = self._files[next(name for name, each in self._model.named_parameters() if each is parameter)]
        value = parameter.data.to(self._stored.tensor(self._stored.by_name[name]).dtype)
        self.changed[name] = value
        return value.float()

    def _change(self, name: str, linear: nn.Linear, moments: Tensor | None) -> None:
        if reason := self._scheme.refusal(*linear.weight.shape):
            self.left[self._file(name)] = reason
            _log.warning("%s stays as it is: %s", self._file(name), reason)
            return
        self.layers[self._file(name)], linear.weight.data = self._scheme.quantize(linear.weight.data.float(), moments)

    def _file(self, name: str) -> str:
        return self._files[f"{name}.weight"].removesuffix(".weight")


def _names(model: PreTrainedModel, stored: StoredWeights) -> dict[str, str]:
    """The names in the files of the parameters that are tensors there."""
    prefix = model.base_model_prefix + "."
    found: dict[str, str] = {}
    for name, _ in model.named_parameters():
        known = next((each for each in (name, name.removeprefix(prefix)) if each in stored.by_name), None)
        if known is not None:
            found[name] = known
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
