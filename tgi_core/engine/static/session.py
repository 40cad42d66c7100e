"""Opens a model on a static device, one step ahead of the reader."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from tgi_core.backend import (
    Capabilities,
    Capacity,
    Feature,
    InvalidModel,
    Kernel,
    MaskSource,
    OpenOptions,
    Progress,
    Unsupported,
    WarmupPlan,
)
from tgi_core.engine.ahead.device import QueuedDevice
from tgi_core.engine.ahead.session import AheadSession
from tgi_core.engine.ahead.steps import EnqueuesSteps
from tgi_core.engine.decoder.unsupported import UnsupportedFamily
from tgi_core.engine.open_model import open_table
from tgi_core.engine.static.device import StaticKit
from tgi_core.engine.static.runner import StaticRunner
from tgi_core.engine.static.warming import warmed


class StaticSession(AheadSession):
    """One rank's session over one model on a static device."""

    def __init__(self, runner: StaticRunner, kit: StaticKit, masks: MaskSource | None, compile_cache: str = "") -> None:
        device = QueuedDevice(kit, runner.queue, runner.shape)
        super().__init__(
            runner, device, masks, (), kit.choices(), Kernel("programs", "one per shape", "none is compiled in traffic")
        )
        self._kit, self._static_runner, self._compile_cache = kit, runner, compile_cache
        features = self._capabilities.features - {Feature.TENSOR_PARALLEL}
        self._capabilities: Capabilities = replace(self._capabilities, features=features)

    def _warmed(self, plan: WarmupPlan, progress: Progress) -> tuple[EnqueuesSteps, Capacity]:
        return warmed(self._device, self._kit, self._static_runner, plan, self._compile_cache, progress)


def open_static(options: OpenOptions, kit: StaticKit, progress: Progress) -> StaticSession:
    """Load a model. Raises InvalidModel for one that no decoder table describes, Unsupported."""
    if options.adapters:
        raise Unsupported("--lora-adapters: static devices run decoders from their tables, which hold no adapters; leave it out")
    if options.group.world != 1:
        raise Unsupported(f"--num-shard {options.group.world}: this static device runs a model on one rank; leave it out")
    try:
        runner = open_table(options, kit, progress)
    except UnsupportedFamily as reason:
        raise InvalidModel(f"static devices run decoder tables; this model is not one: {reason}") from reason
    return StaticSession(cast(StaticRunner, runner), kit, options.masks, options.compile_cache)
