"""The paged engine for models whose attention only they can compute: it runs row by row, all else for all rows at once.

Rows have blocks, are chunked and share prefixes as in the ragged engine; see `lockstep` for what runs together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tgi_core.backend import Kernel
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.attention.cache import BLOCK_SIZES, LayerCache, LayerShape
from tgi_core.engine.attention.interface import AttentionParameters, NotRagged
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.comparison import Agree
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.hf_cache import HFCacheModel
from tgi_core.engine.lora.adapters import Adapters
from tgi_core.engine.models.calling import PLAIN, Convention
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.paged_runner import PagedRunner
from tgi_core.engine.rows.caches import PROBE, RowCaches, RowSlots
from tgi_core.engine.rows.lockstep import Lockstep
from tgi_core.engine.rows.token_wise import token_wise_modules


class ModelAttention:
    """The place of a provider in a runner whose model computes attention."""

    name = "the model's own, row by row"
    block_sizes = BLOCK_SIZES
    kv_cache_dtypes: tuple[torch.dtype, ...] = ()
    invariant = False
    sees_ahead = False

    def probe(self) -> str:
        """It can run anywhere."""
        return ""

    def refusal(self, layers: Sequence[LayerShape], asked: Sequence[AttentionParameters], dtype: torch.dtype) -> str:
        """It supports all layers."""
        return ""

    def self_check(self, layers: Sequence[Any], dtype: torch.dtype, device: torch.device) -> str:
        """The self-check of the whole model covers it."""
        return ""

    def new_layer(
        self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """See `AttentionProvider.new_layer`."""
        return LayerCache(shape, num_blocks, block_size, dtype, device)

    def attend(self, *args: object) -> NoReturn:
        """Only the model attends."""
        raise RuntimeError("the model computes attention itself")


class RowRunner(PagedRunner):
    """Runs a model with a cache of keys and values through its own attention."""

    enqueued = False

    def __init__(
        self,
        model: PreTrainedModel,
        shape: ModelShape,
        kit: DeviceKit,
        adapters: Adapters,
        agree: Agree = int,
        reason: str = "",
        convention: Convention = PLAIN,
    ) -> None:
        """`reason`: why the ragged engine does not run it. Raises NotRagged, and what the model raises."""
        self._model, self._adapters = HFCacheModel(model, agree=agree, convention=convention), adapters
        self._caches = row_caches(self._model, kit)
        shape = replace(shape, whole_head=self._model.head is None)
        super().__init__(tuple(self._caches.shapes), shape, kit, ModelAttention(), agree)
        # with adapters, each row runs by itself: a token-wise module may hold layers that differ from row to row
        together = [] if adapters.names else token_wise_modules(model, self._watched_run, agree)
        self._lockstep = Lockstep(together)
        self.kernels = (Kernel("attention", self.provider.name, reason), Kernel("rows", _told(len(together))))

    def _watched_run(self) -> object:
        return self._model.run(PROBE, 0, self._model.new_cache(), 1)

    def hidden(self, step: StepMetadata, keep: Tensor | None) -> Tensor:
        """See `PagedRunner.hidden`."""
        calls = [self._call(step, number, each) for number, each in enumerate(step.order)]
        found = torch.cat(self._lockstep.run(calls))
        return found if keep is None else found.index_select(0, keep)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [tokens, vocabulary]."""
        return self._model.logits(hidden)

    def _call(self, step: StepMetadata, number: int, row_input: RowInput) -> Callable[[], Tensor]:
        """Runs a row's tokens; returns the input of `logits` for all of them."""
        start, end = row_input.start, row_input.start + row_input.take
        positions = np.arange(start)
        past = step.tables[number, positions // self.block_size] * self.block_size + positions % self.block_size
        first, last = step.cu_seqlens[number : number + 2]
        slots = RowSlots(torch.from_numpy(past).to(step.slots.device), step.slots[first:last])
        run = partial(self._model.hidden, row_input.row.tokens[:end], start)

        def call() -> Tensor:
            with self._adapters.whole(row_input.row.request.adapter):
                return run({self._caches.name: self._caches.row(self._cache_in_use(), slots)}, row_input.take)

        return call


def row_caches(model: HFCacheModel, kit: DeviceKit) -> RowCaches:
    """The caches of rows of a model on a device. Raises NotRagged, and what the model raises."""
    if kit.kv_cache_dtype is not None:
        raise NotRagged("its attention reads no 8-bit cache")
    return RowCaches(model)


def _told(modules: int) -> str:
    return f"{modules} modules run all rows at once" if modules else "one by one"
