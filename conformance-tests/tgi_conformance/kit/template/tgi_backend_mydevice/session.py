"""The session: what the server calls. Parts of the core do most of it; each may be replaced.

`BatchTracker` tracks handles, rows and blocks, and refuses invalid calls; `drawn` samples by the published formula.
"""

from __future__ import annotations

import tgi_core.backend as api
from tgi_core.backend.batch_tracker import BatchTracker, LaunchedStep
from tgi_core.backend.drawing import drawn
from tgi_core.backend.sampling_checks import check_sampling

from tgi_backend_mydevice.device import Device
from tgi_backend_mydevice.errors import translated

Feature = api.Feature
FEATURES = frozenset({Feature.CHUNKED_PREFILL, Feature.LOGPROBS, Feature.PREFIX_REUSE, Feature.TOP_N})
Field = api.SamplingField
FIELDS = frozenset(  # listed by name: installing a later contract does not make its new fields supported
    {Field.FREQUENCY_PENALTY, Field.LOGIT_BIAS, Field.MIN_P, Field.PRESENCE_PENALTY}
    | {Field.REPETITION_PENALTY, Field.SEED, Field.TYPICAL_P}
)


class DeviceSession:
    """One rank, in lock step: a step runs when its rows are read."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._steps = 0
        self._failures: list[api.BackendError] = []
        self._failing: dict[int, api.BackendError] = {}
        self._tracker: BatchTracker | None = None

    @api.hookimpl
    def capabilities(self) -> api.Capabilities:
        """Declare only what works: the suite requests everything else, and expects a refusal."""
        return api.Capabilities(
            features=FEATURES,
            sampling=FIELDS,
            block_sizes=(4, 16, 64),
            mixing=api.Mixing.EAGER,
            determinism=api.Determinism.CORE,
            vocab_size=self._device.vocab_size,
            max_positions=self._device.max_positions,
        )

    @api.hookimpl
    def warmup(self, plan: api.WarmupPlan, progress: api.Progress) -> api.Capacity:
        """The plan is a request, and None leaves a limit to the device; the returned limits are a promise."""
        size, rows = plan.block_size or 16, plan.max_rows or 16
        longest = min(plan.max_row_tokens or 1024, self._device.max_positions)
        num_blocks = plan.num_blocks or rows * -(-longest // size)  # Replace: as many as fit in free memory
        with translated():
            self._device.reserve(num_blocks, size)
        progress("warming up", 1, 1, "step")
        capacity = api.Capacity(
            groups=(api.CacheGroup(api.CacheKind.FULL, size, num_blocks),),
            max_rows=rows,
            max_row_tokens=min(longest, num_blocks * size),
            max_step_tokens=plan.max_step_tokens or 1024,
            max_prefill_rows=rows,
            in_flight=1,  # Replace: 2, once a launched step runs by itself and `rows` only waits for it
            memory=self._device.memory(),
        )
        self._tracker = BatchTracker(self.capabilities(), capacity)
        return capacity

    @api.hookimpl
    def prefill(self, batch: tuple[api.Request, ...], cached: api.Handle, grants: tuple[api.Grant, ...]) -> api.Step:
        """The tracker refuses what must be refused before anything changes."""
        for request in batch:
            check_sampling(request)
        return self._launch(self._open_tracker.prefill(batch, cached, grants))

    @api.hookimpl
    def decode(self, batches: tuple[api.Handle, ...], grants: tuple[api.Grant, ...]) -> api.Step:
        """All rows of the batches continue as one batch."""
        return self._launch(self._open_tracker.decode(batches, grants))

    @api.hookimpl
    def rows(self, step: api.Step) -> api.Rows:
        """The step's results. An error here ends the step's batch and what was derived from it, and no other."""
        row_inputs = self._open_tracker.read(step).row_inputs
        try:
            if step.id in self._failing:
                raise self._failing.pop(step.id)
            with translated():
                logits = self._device.run(row_inputs)
        except api.BackendError:
            self._open_tracker.kill(step)
            raise
        self._steps += 1
        # Replace: sample on the device if Python is too slow; the formula is in `tgi_core.backend.sampling`.
        return api.Rows(step.id, tuple(drawn(item, scores) for item, scores in zip(row_inputs, logits, strict=True)))

    @api.hookimpl
    def filter(self, batch: api.Handle, keep: tuple[int, ...]) -> api.Handle:
        """Bookkeeping only: the device is not involved."""
        return self._open_tracker.filter(batch, keep)

    @api.hookimpl
    def clear(self, batch: api.Handle | None) -> api.Cleared:
        """Like filter: blocks belong to the server, which grants them again."""
        return api.Cleared(self._open_tracker.clear(batch))

    @api.hookimpl
    def stats(self) -> api.Stats:
        """Counters since open; growing memory, or compiles after warmup, fail level L3."""
        return api.Stats(steps=self._steps, memory=self._device.memory())

    @api.hookimpl
    def close(self) -> api.Closed:
        """May be called twice."""
        self._tracker = None
        self._device.close()
        return api.Closed()

    def conformance_fail(self, error: api.BackendError) -> None:
        """Only for the suite, which makes steps fail by masks or by this: the step launched next fails."""
        self._failures.append(error)

    @property
    def _open_tracker(self) -> BatchTracker:
        if self._tracker is None:
            raise api.InvalidRequest("the session is not warmed up, or closed")
        return self._tracker

    def _launch(self, launch: LaunchedStep) -> api.Step:
        if self._failures:
            self._failing[launch.step.id] = self._failures.pop()
        return launch.step  # Replace: start it on the device, and let `rows` wait for it
