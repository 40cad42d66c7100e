"""The session of one rank among several: rank 0 samples, and broadcasts the tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tgi_core.backend import (
    Capabilities,
    Capacity,
    Closed,
    Feature,
    Kernel,
    MaskSource,
    Progress,
    Row,
    WarmupPlan,
    hookimpl,
)
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.collectives import Collectives
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.rank_rows import shared_rows
from tgi_core.engine.runner import Runner, StepLogits
from tgi_core.engine.sync_session import Reserve, SyncSession


class RankSession(SyncSession):
    """A session in lock step with those of the other ranks. All of them receive the same calls in the same order."""

    def __init__(
        self,
        runner: Runner,
        shape: ModelShape,
        masks: MaskSource | None,
        collectives: Collectives,
        kernels: tuple[Kernel, ...] = (),
        reserve: Reserve | None = None,
    ) -> None:
        super().__init__(runner, shape, masks, kernels=kernels, reserve=reserve)
        self._collectives = collectives
        if collectives.tell([int(masks is not None)])[0]:  # only rank 0 has masks, but all ranks take the same requests
            features = self._capabilities.features | {Feature.MASKS}
            self._capabilities: Capabilities = replace(self._capabilities, features=features)

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """See `SyncSession.warmup`; the ranks reserve and compile each at its own pace, and run steps at one."""
        capacity = super().warmup(plan, progress)
        self._collectives.start_serving()
        return capacity

    @hookimpl
    def close(self) -> Closed:
        """Release everything, and leave the group. Idempotent."""
        closed = super().close()
        self._collectives.close()
        return closed

    def _sample(self, row_inputs: list[RowInput], logits: StepLogits) -> tuple[Row, ...]:
        self._collectives.settle()  # rank 0 reads logits next, which would wait forever for a rank that is lost
        rows = shared_rows(self._collectives, row_inputs, partial(super()._sample, row_inputs, logits))
        if not self._collectives.leads:
            for row_input, row in zip(row_inputs, rows, strict=True):
                self._keep(row_input, row)
        return rows
