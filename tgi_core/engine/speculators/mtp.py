"""Multi-token prediction: a layer that the model brings guesses the next token but one from its last hidden state, and goes on from its
own, as in vLLM and SGLang.

Hidden states are those behind the final norm, of the model as of the layer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import cast

from torch import Tensor

from tgi_core.backend import InvalidModel, Progress, Unsupported
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.models.build import ModelSource
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.paged_runner import PagedRunner
from tgi_core.engine.quantization.stored import open_weights
from tgi_core.engine.ragged import RaggedRunner
from tgi_core.engine.runner_selection import select_runner
from tgi_core.engine.speculators.cached import unshared_blocks
from tgi_core.engine.speculators.chained import ChainedSpeculator, KeepsTokens
from tgi_core.engine.speculators.mtp_files import MtpFiles
from tgi_core.engine.speculators.mtp_layer import MtpInput, NoLayer

NAME = "mtp"


def open_mtp(
    source: ModelSource, runner: KeepsTokens, shape: ModelShape, kit: DeviceKit, progress: Progress
) -> MtpSpeculator | str:
    """The layer that the model of `source` brings, for its `runner`, which keeps tokens; or why there is none. Raises InvalidModel for
    damaged files."""
    try:
        files = MtpFiles(source.config, open_weights(source.directory, source.quantize))
        own = _runner(files, source, runner.embedding, kit, progress)
    except NoLayer as reason:
        return str(reason)
    if refused := unshared_blocks("multi-token prediction", own.block_sizes, runner.block_sizes):
        return refused
    speculator = MtpSpeculator(own, runner, shape, kit)
    runner.beside = speculator
    return speculator


def _runner(files: MtpFiles, source: ModelSource, embedding: Tensor, kit: DeviceKit, progress: Progress) -> RaggedRunner:
    """A runner of the layer. Raises NoLayer, and InvalidModel for damaged files."""
    try:
        found, _ = select_runner(replace(source, load=partial(files.load, embedding=embedding)), kit, progress)
    except (InvalidModel, Unsupported) as error:
        if not files.loaded:
            raise
        raise NoLayer(f"the layer for multi-token prediction cannot be run: {error}") from error
    if not isinstance(found, RaggedRunner):
        raise NoLayer("the layer for multi-token prediction computes attention row by row")
    return found


def spare_bytes(own: PagedRunner, shape: ModelShape, rows: int, draft: int, step_tokens: int, block_size: int) -> int:
    """What the cache of a layer that `own` runs takes besides its blocks: the reserve, and hidden states of a step of the model."""
    blocks = own.spare_blocks + rows * -(-draft // block_size)
    return blocks * own.cache_block_bytes(block_size) + step_tokens * shape.hidden_size * shape.dtype.itemsize


class MtpSpeculator(ChainedSpeculator):
    """See `ChainedSpeculator`."""

    name = NAME

    def __init__(self, own: RaggedRunner, model: KeepsTokens, shape: ModelShape, kit: DeviceKit) -> None:
        """`own` runs the layer, `model` the model, whose sizes are `shape`."""
        super().__init__(shape.max_positions, own.shape.weight_bytes, kit.device)
        self._own, self._model, self._shape = own, model, shape
        self._inputs = cast(MtpInput, own.model.get_input_embeddings())

    def block_bytes(self, block_size: int) -> int:
        """See `CacheBeside`."""
        return self._own.cache_block_bytes(block_size)

    def spare_bytes(self, rows: int, draft: int, step_tokens: int, block_size: int) -> int:
        """See `CacheBeside`."""
        return spare_bytes(self._own, self._shape, rows, draft, step_tokens, block_size)

    def use_cache(self, num_blocks: int, block_size: int) -> None:
        """See `CachedSpeculator.use_cache`."""
        self._own.use_cache(num_blocks, block_size)

    def release(self) -> None:
        """See `Speculator.release`."""
        self._own.release()

    def combined(self, states: Tensor) -> Tensor:
        """See `ChainedSpeculator.combined`."""
        return states

    def run_layers(self, hidden: Tensor, step: StepMetadata, keep: Tensor) -> tuple[Tensor, Tensor]:
        """See `ChainedSpeculator.run_layers`."""
        self._inputs.hidden = hidden
        try:
            states = self._own.hidden(step, keep)
        finally:
            self._inputs.hidden = None
        return (self._model.logits(states).argmax(-1) if len(keep) else keep), states
