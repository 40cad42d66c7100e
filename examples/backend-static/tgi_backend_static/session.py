"""The session of a device with fixed slots: a slot is a block, so a row needs one block and never grows."""

from __future__ import annotations

import tgi_core.backend as api
from tgi_core.backend.batch_tracker import BatchTracker, LaunchedStep, RowInput
from tgi_core.backend.drawing import drawn
from tgi_core.backend.sampling import Logits
from tgi_core.backend.sampling_checks import check_sampling

from tgi_backend_static.buckets import calls, shapes, widths
from tgi_backend_static.device import Device, Shape
from tgi_backend_static.errors import translated

LONGEST = 1024
"""Positions of a slot unless the plan says otherwise; shorter where the model is."""

Field = api.SamplingField
FIELDS = frozenset(  # by their names: what a later contract adds is not honoured because somebody has installed it
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
        self._shapes: tuple[Shape, ...] = ()
        self._tracker: BatchTracker | None = None

    @api.hookimpl
    def capabilities(self) -> api.Capabilities:
        """Whole prompts into slots of their own: no chunks, no shared prefixes, no prompts beside rows that decode."""
        return api.Capabilities(
            features=frozenset({api.Feature.LOGPROBS, api.Feature.TOP_N}),
            sampling=FIELDS,
            block_sizes=(),  # warm-up decides it: as long as rows may be
            mixing=api.Mixing.NONE,
            determinism=api.Determinism.CORE,
            vocab_size=self._device.vocab_size,
            max_positions=self._device.max_positions,
        )

    @api.hookimpl
    def warmup(self, plan: api.WarmupPlan, progress: api.Progress) -> api.Capacity:
        """Batch size and sequence length are fixed here: every shape within them is compiled, and no other will run."""
        slots = min(plan.max_rows or 8, plan.num_blocks or 8)
        length = min(plan.max_row_tokens or LONGEST, self._device.max_positions)
        self._shapes = shapes(slots, length)
        with translated():
            self._device.compile(self._shapes, slots, length)
        progress("compiling", len(self._shapes), len(self._shapes), "step")
        capacity = api.Capacity(
            groups=(api.CacheGroup(api.CacheKind.FULL, length, slots),),
            max_rows=slots,
            max_row_tokens=length,
            max_step_tokens=max(plan.max_step_tokens or slots * length, length),
            max_prefill_rows=slots,
            takes=widths(self._shapes),
            memory=self._device.memory(),
            compiles=self._device.compiles,
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
        """All rows of the batches go on as one batch."""
        return self._launch(self._open_tracker.decode(batches, grants))

    @api.hookimpl
    def rows(self, step: api.Step) -> api.Rows:
        """The step's results. An error here ends the step's batch and what was derived from it, and no other."""
        row_inputs = self._open_tracker.read(step).row_inputs
        try:
            if step.id in self._failing:
                raise self._failing.pop(step.id)
            with translated():
                logits = self._run(row_inputs)
        except api.BackendError:
            self._open_tracker.kill(step)
            raise
        self._steps += 1

        return api.Rows(step.id, tuple(drawn(item, logits[item.row.request.id]) for item in row_inputs))

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
        return api.Stats(self._steps, self._device.compiles, memory=self._device.memory())

    @api.hookimpl
    def close(self) -> api.Closed:
        """May be called twice."""
        self._tracker = None
        self._device.close()
        return api.Closed()

    def conformance_fail(self, error: api.BackendError) -> None:
        """For the suite alone, which breaks steps by masks or by this: the step that is launched next fails so."""
        self._failures.append(error)

    @property
    def _open_tracker(self) -> BatchTracker:
        if self._tracker is None:
            raise api.InvalidRequest("the session is not warmed up, or closed")
        return self._tracker

    def _launch(self, launch: LaunchedStep) -> api.Step:
        if self._failures:
            self._failing[launch.step.id] = self._failures.pop()
        return launch.step

    def _run(self, row_inputs: tuple[RowInput, ...]) -> dict[int, Logits]:
        """Logits by request: one step of the contract may be several programs of the device."""
        found = {}
        for call, rows in calls(row_inputs, self._shapes):
            found |= {item.row.request.id: logits for item, logits in zip(rows, self._device.run(call), strict=False)}
        return found
