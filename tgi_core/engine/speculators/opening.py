"""Opening the speculator that the operator asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tgi_core.backend import Kernel, Progress
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.drafts import allow_drafts
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.paged_runner import CANNOT_GO_BACK
from tgi_core.engine.quantization.linear import Linears
from tgi_core.engine.runner import KeepsHidden, Runner
from tgi_core.engine.speculators.base import PART, Speculator
from tgi_core.engine.speculators.cached import unshared_blocks
from tgi_core.engine.speculators.chained import KeepsTokens
from tgi_core.engine.speculators.draft_model import DraftModel, PagedModel
from tgi_core.engine.speculators.eagle3 import KeepsLayers, open_eagle3
from tgi_core.engine.speculators.files import SpeculatorConfig
from tgi_core.engine.speculators.heads import Heads, HeadSpeculator
from tgi_core.engine.speculators.medusa import MedusaHeads
from tgi_core.engine.speculators.mlp import MlpSpeculator
from tgi_core.speculator_files import MEDUSA, is_eagle3, is_speculator

if TYPE_CHECKING:
    from tgi_core.engine.models.build import ModelSource

_log = logging.getLogger("tgi_core.engine")

_ROW_BY_ROW = "a model with its own cache runs row by row"

_NO_STATES = "EAGLE-3 takes hidden states between layers, which only the step from a table hands out"

OpenRunner = Callable[[Path], Runner]
"""Loads a model of its own for the same device."""


def open_speculator(
    directory: Path, runner: Runner, shape: ModelShape, kit: DeviceKit, open_runner: OpenRunner
) -> tuple[Speculator | None, Kernel]:
    """The speculator in a directory, by its config.json, for the model of `runner`; and its name, or why there is none.

    Raises InvalidModel for damaged files, and for a speculator of another model; Unsupported.
    """
    config = SpeculatorConfig(directory)
    speculator: Speculator | str
    if is_eagle3(config.values):
        speculator = open_eagle3(directory, runner, shape, kit, config) if isinstance(runner, KeepsLayers) else _NO_STATES
    elif is_speculator(config.values):
        speculator = _head_speculator(directory, runner, shape, kit, config)
    else:
        speculator = _draft_model(open_runner(directory), runner, shape, config)
    return _told(speculator)


def open_own_layers(
    open_source: Callable[[], ModelSource], runner: Runner, shape: ModelShape, kit: DeviceKit, progress: Progress
) -> tuple[Speculator | None, Kernel]:
    """The layers for multi-token prediction that a model brings, for its `runner`; and their name, or why they are not used. Raises
    InvalidModel for damaged files."""
    speculator: Speculator | str
    if getattr(runner, "stateful", False):
        speculator = CANNOT_GO_BACK
    elif not isinstance(runner, KeepsTokens):
        speculator = _ROW_BY_ROW
    elif refused := runner.keep_tokens():
        speculator = refused
    elif (drafts := allow_drafts(runner, exact=True)).name == "none":  # before the layer is loaded, which may be large
        speculator = drafts.reason
    else:
        # transformers takes seconds to import
        from tgi_core.engine.speculators.mtp import open_mtp

        speculator = open_mtp(open_source(), runner, shape, kit, progress)
    return _told(speculator)


def _told(speculator: Speculator | str) -> tuple[Speculator | None, Kernel]:
    if isinstance(speculator, str):
        return None, Kernel(PART, "none", speculator)
    _log.info("speculator: %s, which guesses up to %d tokens", speculator.name, speculator.most)
    return speculator, Kernel(PART, speculator.name, f"up to {speculator.most} tokens of a row")


def _draft_model(own: Runner, runner: Runner, shape: ModelShape, config: SpeculatorConfig) -> Speculator | str:
    """The draft model that the runner `own` runs, or why it cannot guess for the model of `runner`."""
    if not isinstance(own, PagedModel) or not isinstance(runner, PagedModel):
        return _ROW_BY_ROW
    if getattr(own, "stateful", False) or getattr(runner, "stateful", False):
        return CANNOT_GO_BACK
    if refused := unshared_blocks("the draft model", own.block_sizes, runner.block_sizes):
        return refused
    speculator = DraftModel(own, shape, config)
    runner.beside = speculator
    return speculator


def _head_speculator(
    directory: Path, runner: Runner, shape: ModelShape, kit: DeviceKit, config: SpeculatorConfig
) -> Speculator | str:
    """The heads in a directory, or why the model cannot feed them."""
    if not isinstance(runner, KeepsHidden):
        return _ROW_BY_ROW
    reason = runner.keep_hidden()
    return reason or HeadSpeculator(_heads(directory, runner, shape, kit, config))


def _heads(directory: Path, runner: KeepsHidden, shape: ModelShape, kit: DeviceKit, config: SpeculatorConfig) -> Heads:
    linears = Linears(kit.linears(), kit.device)
    if MEDUSA in config.values:
        return MedusaHeads(directory, shape, runner.logits, linears, config)
    return MlpSpeculator(directory, shape, linears, config)
