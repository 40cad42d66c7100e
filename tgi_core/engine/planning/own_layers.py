"""Plans the layers for multi-token prediction that a model brings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import torch
from transformers import PreTrainedModel

from tgi_core.backend import Capacity, Kernel, Memory, OpenOptions, Row, WarmupPlan
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.models.build import text_config
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.open_model import model_source
from tgi_core.engine.paged_runner import CANNOT_GO_BACK
from tgi_core.engine.planning.modules import plan_decoder
from tgi_core.engine.planning.runners import PlannedRunner
from tgi_core.engine.quantization.stored import open_weights
from tgi_core.engine.runner import Runner, StepLogits
from tgi_core.engine.speculators.base import PART, Speculator
from tgi_core.engine.speculators.files import MOST
from tgi_core.engine.speculators.mtp import NAME, spare_bytes
from tgi_core.engine.speculators.mtp_files import MtpFiles
from tgi_core.engine.speculators.mtp_layer import NoLayer


@dataclass(slots=True)
class PlannedLayers:
    """Such a layer without weights; see `Speculator` and `CacheBeside`."""

    runner: PlannedRunner
    shape: ModelShape
    name: str = NAME
    most: int = MOST

    def block_bytes(self, block_size: int) -> int:
        """See `CacheBeside`."""
        return self.runner.cache_block_bytes(block_size)

    def spare_bytes(self, rows: int, draft: int, step_tokens: int, block_size: int) -> int:
        """See `CacheBeside`."""
        return spare_bytes(self.runner, self.shape, rows, draft, step_tokens, block_size)

    def reserve(self, plan: WarmupPlan, capacity: Capacity) -> Capacity:
        """See `Speculator.reserve`; allocates nothing."""
        return replace(capacity, memory=(*capacity.memory, Memory("speculator", self.runner.shape.weight_bytes)))

    def propose(self, row_inputs: Sequence[RowInput], rows: Sequence[Row], logits: StepLogits, count: int) -> NoReturn:
        """There are no weights."""
        raise RuntimeError("a planned layer guesses nothing")

    def release(self) -> None:
        """Nothing is kept."""


def plan_own_layers(options: OpenOptions, runner: Runner, shape: ModelShape, kit: DeviceKit) -> tuple[Speculator | None, Kernel]:
    """The layer beside the model of a planned runner, which then has its memory; and what to report. Raises InvalidModel, Unsupported."""
    if not isinstance(runner, PlannedRunner):
        return None, Kernel(PART, "none", "a model with its own cache runs row by row")
    if runner.stateful:
        return None, Kernel(PART, "none", CANNOT_GO_BACK)
    source = model_source(options, kit)
    stored = open_weights(source.directory, source.quantize)
    text = text_config(source.config)
    try:
        files = MtpFiles(source.config, stored)

        def build(dtype: torch.dtype) -> PreTrainedModel:
            embedding = torch.empty(text.vocab_size, text.hidden_size, dtype=dtype, device="meta")
            return files.empty(source.config, stored, dtype, embedding)

        own, _ = plan_decoder(build, source, files.named(build(source.dtype), stored), kit, None)
    except NoLayer as reason:
        return None, Kernel(PART, "none", str(reason))
    if not isinstance(own, PlannedRunner):
        return None, Kernel(PART, "none", "the layer for multi-token prediction computes attention row by row")
    layers = PlannedLayers(own, shape)
    runner.beside = layers
    runner.hold(own.shape.weight_bytes)
    return layers, Kernel(PART, layers.name, f"up to {layers.most} tokens of a row, if it runs drafts")
