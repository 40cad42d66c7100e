"""The session of one rank among several, one step ahead.

All ranks get the same calls in the same order, and compute the same logits to the last bit, since an all-reduce gives the same sums to all.
So each samples the same tokens on its device, and none waits for another but within a step. What rank 0's host samples, and the masks that
only rank 0 has, are broadcast through the device's queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch.distributed as dist

from tgi_core.backend import (
    BackendBug,
    BackendError,
    Capacity,
    Closed,
    Feature,
    Kernel,
    MaskSource,
    PeerLost,
    Progress,
    Row,
    WarmupPlan,
    hookimpl,
)
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.ahead.device import AheadRunner, QueuedDevice
from tgi_core.engine.ahead.session import AheadSession
from tgi_core.engine.collectives import STEP_S, Collectives
from tgi_core.engine.rank_rows import shared_rows


@runtime_checkable
class Impatient(Protocol):
    """A queue whose waits can end."""

    patience_s: float | None
    """Seconds after which a wait raises PeerLost; None: never."""


class AheadRankSession(AheadSession):
    """One rank's session over its part of a model."""

    def __init__(
        self,
        runner: AheadRunner,
        device: QueuedDevice,
        masks: MaskSource | None,
        collectives: Collectives,
        kernels: tuple[Kernel, ...] = (),
    ) -> None:
        super().__init__(runner, device, masks, (), kernels)
        self._collectives = collectives
        if collectives.tell([int(masks is not None)])[0]:  # only rank 0 has masks, but all ranks take the same requests
            self._masked = True
            self.declare(features=self._capabilities.features | {Feature.MASKS})

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """See `AheadSession.warmup`; the ranks compile and capture each at its own pace, and run steps at one."""
        capacity = super().warmup(plan, progress)
        self._collectives.start_serving()
        if isinstance(self._device.queue, Impatient):
            self._device.queue.patience_s = STEP_S
        return capacity

    @hookimpl
    def close(self) -> Closed:
        """Free everything, and leave the group. Idempotent."""
        closed = super().close()
        self._collectives.close()
        return closed

    def _chosen(self, row_inputs: Sequence[RowInput], choose: Callable[[], tuple[Row, ...]]) -> tuple[Row, ...]:
        return self._device.now(lambda: shared_rows(self._collectives, row_inputs, choose))

    def _filled(self, row_inputs: Sequence[RowInput], size: int) -> bytes:
        packed = b""
        try:
            if self._collectives.leads:
                packed = super()._filled(row_inputs, size)
        finally:
            made = self._device.now(lambda: self._collectives.share(packed, size))
        if not made:
            raise BackendBug("rank 0 could not fill masks")
        return made

    def _translated(self, error: Exception) -> BackendError:
        if isinstance(error, dist.DistError):
            error = PeerLost(f"another rank is gone: {' '.join(str(error).split())[:200]}")
        return super()._translated(error)
