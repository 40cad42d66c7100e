"""The session of one rank among several: rank 0 samples, and broadcasts the tokens."""

from __future__ import annotations

from dataclasses import replace

from tgi_core.backend import (
    BackendBug,
    Capabilities,
    Capacity,
    Closed,
    Feature,
    Kernel,
    MaskSource,
    Progress,
    Row,
    RowFault,
    RowFaultKind,
    WarmupPlan,
    hookimpl,
)
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.collectives import Collectives
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.runner import Runner, StepLogits
from tgi_core.engine.sync_session import Reserve, SyncSession

_NO_TOKEN, _FAULT, _NO_STEP = -1, -2, -3
"""Broadcast instead of a token: the row has none at this place, the row failed here, or rank 0 could not sample at all."""


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
        yielding = [row_input for row_input in row_inputs if row_input.yields]
        width = 1 + max((len(row_input.drafts) for row_input in yielding), default=0)
        if not self._collectives.leads:
            return self._follow(row_inputs, self._told([[]] * len(yielding), width))
        try:
            rows = super()._sample(row_inputs, logits)
        except BaseException:
            self._told([[_NO_STEP]] * len(yielding), width)
            raise
        made = {row.request_id: [*row.tokens, *([] if row.fault is None else [_FAULT])] for row in rows}
        self._told([made[row_input.row.request.id] for row_input in yielding], width)
        return rows

    def _told(self, made: list[list[int]], width: int) -> list[list[int]]:
        """Rank 0's tokens for each row that yields, at most `width`."""
        flat = [value for row in made for value in (row + [_NO_TOKEN] * width)[:width]]
        told = self._collectives.tell(flat) if flat else []
        return [told[at : at + width] for at in range(0, len(told), width)]

    def _follow(self, row_inputs: list[RowInput], told: list[list[int]]) -> tuple[Row, ...]:
        """Rows with the tokens from rank 0, for those that yield."""
        if [_NO_STEP] in [row[:1] for row in told]:
            raise BackendBug("rank 0 could not sample")
        given, rows = iter(told), []
        for row_input in row_inputs:
            made = next(given) if row_input.yields else []
            fault = RowFault(RowFaultKind.SAMPLER, "it failed on rank 0") if _FAULT in made else None
            tokens = tuple(token for token in made if token >= 0)
            row = Row(row_input.row.request.id, tokens, drafted=len(row_input.drafts), fault=fault)
            self._keep(row_input, row)
            rows.append(row)
        return tuple(rows)
