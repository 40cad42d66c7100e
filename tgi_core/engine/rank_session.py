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
from tgi_core.backend.ledger import Work
from tgi_core.engine.collectives import Collectives
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.runner import Runner, StepLogits
from tgi_core.engine.sync_session import SyncSession

_NO_TOKEN = -1
"""Broadcast for a row that failed."""
_NO_STEP = -2
"""Broadcast for every row if rank 0 could not sample at all."""


class RankSession(SyncSession):
    """A session in step with the other ranks'. All of them receive the same calls in the same order."""

    def __init__(
        self,
        runner: Runner,
        shape: ModelShape,
        masks: MaskSource | None,
        collectives: Collectives,
        kernels: tuple[Kernel, ...] = (),
    ) -> None:
        super().__init__(runner, shape, masks, kernels=kernels)
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
        """Give everything back, and leave the group. Idempotent."""
        closed = super().close()
        self._collectives.close()
        return closed

    def _sample(self, works: list[Work], logits: StepLogits) -> tuple[Row, ...]:
        self._collectives.settle()  # rank 0 reads logits next, which would wait forever for a rank that is lost
        yielding = [work for work in works if work.yields]
        if not self._collectives.leads:
            return self._follow(works, self._collectives.tell([0] * len(yielding)) if yielding else [])
        try:
            rows = super()._sample(works, logits)
        except BaseException:
            if yielding:
                self._collectives.tell([_NO_STEP] * len(yielding))
            raise
        if yielding:
            made = {row.request_id: row.tokens[0] if row.tokens else _NO_TOKEN for row in rows}
            self._collectives.tell([made[work.row.request.id] for work in yielding])
        return rows

    def _follow(self, works: list[Work], told: list[int]) -> tuple[Row, ...]:
        """Rows with the tokens from rank 0, for those that yield."""
        if _NO_STEP in told:
            raise BackendBug("rank 0 could not sample")
        tokens, rows = iter(told), []
        for work in works:
            row = Row(work.row.request.id)
            if work.yields and (token := next(tokens)) != _NO_TOKEN:
                row = replace(row, tokens=(token,))
            elif work.yields:
                row = replace(row, fault=RowFault(RowFaultKind.SAMPLER, "it failed on rank 0"))
            self._keep(work.row, row)
            rows.append(row)
        return tuple(rows)
