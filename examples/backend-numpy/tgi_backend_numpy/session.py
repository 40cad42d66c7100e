"""The session: as the kit wrote it, for a device that computes when its rows are read; and it runs drafts."""

from __future__ import annotations

import tgi_core.backend as api
from tgi_core.backend.batch_tracker import BatchTracker
from tgi_core.backend.drafts import verified
from tgi_core.backend.drawing import drawn
from tgi_core.backend.sampling_checks import check_sampling

from tgi_backend_numpy.device import Device
from tgi_backend_numpy.errors import translated

FIELDS = frozenset(  # by their names: what a later contract adds is not honoured because somebody has installed it
    {api.SamplingField.FREQUENCY_PENALTY, api.SamplingField.LOGIT_BIAS, api.SamplingField.MIN_P}
    | {api.SamplingField.PRESENCE_PENALTY, api.SamplingField.REPETITION_PENALTY, api.SamplingField.SEED}
    | {api.SamplingField.TYPICAL_P}
)


class DeviceSession:
    """One rank, in lock step: a step runs when its rows are read."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._steps = 0
        self._tracker: BatchTracker | None = None

    @api.hookimpl
    def capabilities(self) -> api.Capabilities:
        """Declare only what runs: the suite asks for all the rest, and wants to see it refused."""
        features = frozenset(map(api.Feature, ("chunked_prefill", "logprobs", "prefix_reuse", "speculation", "top_n")))
        positions = self._device.max_positions
        return api.Capabilities(
            features, FIELDS, (4, 16, 64), api.Mixing.EAGER, api.Determinism.CORE, self._device.vocab_size, positions
        )

    @api.hookimpl
    def warmup(self, plan: api.WarmupPlan) -> api.Capacity:
        """The plan is a wish, None leaves a limit to the device; what is returned is a promise."""
        size, rows, tokens = plan.block_size or 16, plan.max_rows or 16, plan.max_step_tokens or 1024
        longest = min(plan.max_row_tokens or 1024, self._device.max_positions)
        num_blocks = plan.num_blocks or rows * -(-longest // size)
        with translated():
            self._device.reserve(num_blocks, size)
        groups, longest = (api.CacheGroup(api.CacheKind.FULL, size, num_blocks),), min(longest, num_blocks * size)
        capacity = api.Capacity(groups, rows, longest, tokens, rows, 1, plan.draft, self._device.memory())
        self._tracker = BatchTracker(self.capabilities(), capacity)
        return capacity

    @api.hookimpl
    def prefill(self, batch: tuple[api.Request, ...], cached: api.Handle, grants: tuple[api.Grant, ...]) -> api.Step:
        """The tracker refuses what must be refused before anything changes."""
        for request in batch:
            check_sampling(request)
        return self._open_tracker.prefill(batch, cached, grants).step

    @api.hookimpl
    def decode(self, batches: tuple[api.Handle, ...], grants: tuple[api.Grant, ...]) -> api.Step:
        """All rows of the batches go on as one batch."""
        return self._open_tracker.decode(batches, grants).step

    @api.hookimpl
    def rows(self, step: api.Step) -> api.Rows:
        """The step's results. An error here ends the step's batch and what was derived from it, and no other."""
        row_inputs = self._open_tracker.read(step).row_inputs
        try:
            with translated():
                logits = iter(self._device.run(row_inputs))  # one for each token that may be chosen
        except api.BackendError:
            self._open_tracker.kill(step)
            raise
        self._steps += 1
        return api.Rows(step.id, tuple(verified(item, [next(logits) for _ in (0, *item.drafts)], drawn) for item in row_inputs))

    @api.hookimpl
    def filter(self, batch: api.Handle, keep: tuple[int, ...]) -> api.Handle:
        """Bookkeeping only: the device need not hear of it."""
        return self._open_tracker.filter(batch, keep)

    @api.hookimpl
    def clear(self, batch: api.Handle | None) -> api.Cleared:
        """As filter: blocks belong to the server, and are granted anew."""
        return api.Cleared(self._open_tracker.clear(batch))

    @api.hookimpl
    def stats(self) -> api.Stats:
        """Counted since open; memory that grows, or compiles after warmup, fail level L3."""
        return api.Stats(steps=self._steps, memory=self._device.memory())

    @api.hookimpl
    def close(self) -> api.Closed:
        """May be called twice."""
        self._tracker = None
        self._device.close()
        return api.Closed()

    @property
    def _open_tracker(self) -> BatchTracker:
        if self._tracker is None:
            raise api.InvalidRequest("the session is not warmed up, or closed")
        return self._tracker
