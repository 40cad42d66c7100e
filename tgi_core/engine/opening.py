"""Opening a model on a device: what a device package calls from `backend_open`."""

from __future__ import annotations

from pathlib import Path

from tgi_core.backend import OpenOptions, Progress, Unsupported
from tgi_core.engine.choosing import choose_runner
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.lora.files import open_adapter
from tgi_core.engine.models.build import ModelSource, read_config, stored_dtype
from tgi_core.engine.session import EngineSession


def open_session(options: OpenOptions, kit: DeviceKit, progress: Progress) -> EngineSession:
    """Load a model and choose how it runs. Raises InvalidModel, Unsupported."""
    if options.adapters and options.group.world != 1:
        raise Unsupported(f"--lora-adapters: adapters cannot be split over {options.group.world} ranks; leave one of the two out")
    if options.group.world != 1:
        raise Unsupported(f"a group of {options.group.world} ranks: this backend runs on one")
    directory = Path(options.model)
    config = read_config(directory)
    adapters = tuple(map(open_adapter, options.adapters))
    source = ModelSource(directory, config, kit.choose_dtype(options.dtype, stored_dtype(config)), adapters)
    runner, shape = choose_runner(source, kit, progress)
    return EngineSession(runner, shape, options.masks, tuple(adapter.name for adapter in adapters))
