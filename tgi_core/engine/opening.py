"""Opening a model on a device: what a device package calls from `backend_open`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tgi_core.backend import OpenOptions, Progress
from tgi_core.engine.choosing import choose_runner
from tgi_core.engine.collectives import open_collectives
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.models.build import ModelSource, read_config, stored_dtype
from tgi_core.engine.ranked import RankedSession
from tgi_core.engine.session import EngineSession
from tgi_core.engine.weights.partial import check_partition, load_partition


def open_session(options: OpenOptions, kit: DeviceKit, progress: Progress) -> EngineSession:
    """Load a model, or this rank's part of it, and choose how it runs. Raises InvalidModel, Unsupported, PeerLost."""
    directory, group = Path(options.model), options.group
    config = read_config(directory)
    source = ModelSource(directory, config, kit.choose_dtype(options.dtype, stored_dtype(config)))
    if group.world == 1:
        runner, shape = choose_runner(source, kit, progress)
        return EngineSession(runner, shape, options.masks)
    check_partition(config, source.dtype, group.rank, group.world)
    collectives = open_collectives(group, kit.collectives, kit.device)
    load = partial(load_partition, collectives=collectives)
    runner, shape = choose_runner(ModelSource(directory, config, source.dtype, load), kit, progress, collectives)
    return RankedSession(runner, shape, options.masks, collectives)
