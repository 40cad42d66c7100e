"""Opening a model on a device: what a device package calls from `backend_open`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from tgi_core.backend import OpenOptions, Progress, Unsupported
from tgi_core.engine.choosing import choose_runner
from tgi_core.engine.collectives import open_collectives
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.lora.files import open_adapter
from tgi_core.engine.models.build import ModelSource, read_config, stored_dtype
from tgi_core.engine.ranked import RankedSession
from tgi_core.engine.session import EngineSession
from tgi_core.engine.weights.partial import check_partition, load_partition


def open_session(options: OpenOptions, kit: DeviceKit, progress: Progress) -> EngineSession:
    """Load a model, or this rank's part of it, and choose how it runs. Raises InvalidModel, Unsupported, PeerLost."""
    directory, group = Path(options.model), options.group
    if options.adapters and group.world != 1:
        raise Unsupported(f"--lora-adapters: adapters cannot be split over {group.world} ranks; leave one of the two out")
    config = read_config(directory)
    adapters = tuple(map(open_adapter, options.adapters))
    source = ModelSource(directory, config, kit.choose_dtype(options.dtype, stored_dtype(config)), adapters)
    if group.world == 1:
        runner, shape = choose_runner(source, kit, progress)
        return EngineSession(runner, shape, options.masks, tuple(adapter.name for adapter in adapters))
    check_partition(config, source.dtype, group.rank, group.world)
    collectives = open_collectives(group, kit.collectives, kit.device)
    load = partial(load_partition, collectives=collectives)
    runner, shape = choose_runner(replace(source, load=load), kit, progress, collectives)
    return RankedSession(runner, shape, options.masks, collectives)
