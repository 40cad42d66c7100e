"""Opening a model on an accelerator. Importing this module does not import torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tgi_core.backend import Feature, OpenOptions, Probe, Progress
from tgi_core.engine.accelerator.discovery import check_ready
from tgi_core.engine.lora.files import open_adapter
from tgi_core.engine.weights.sizes import check_model

if TYPE_CHECKING:
    from tgi_core.engine.device import DeviceKit


def open_accelerator(
    options: OpenOptions, progress: Progress, found: Probe, defaults: Mapping[str, str], kit: Callable[[], DeviceKit]
) -> object:
    """A session on the device that was `found`. `defaults` are put into the environment, unless the operator has set them, before `kit`
    loads torch. Raises InvalidModel, Unsupported, OutOfMemory; DeviceLost if there is no device."""
    _prepare(options, found, defaults)
    from tgi_core.engine.open_model import open_session

    session = open_session(options, kit(), progress)
    if options.group.world == 1 and len(found.devices) == 1:  # every rank needs its own device
        session.declare(features=session.capabilities().features - {Feature.TENSOR_PARALLEL})
    return session


def plan_accelerator(
    options: OpenOptions, free_bytes: int | None, found: Probe, defaults: Mapping[str, str], kit: Callable[[], DeviceKit]
) -> object:
    """What `open_accelerator` would choose and how much memory it would take; see `backend_plan`. Raises InvalidModel, Unsupported;
    DeviceLost if there is no device."""
    _prepare(options, found, defaults)
    from tgi_core.engine.planning import plan_session

    return plan_session(options, kit(), free_bytes)


def _prepare(options: OpenOptions, found: Probe, defaults: Mapping[str, str]) -> None:
    """Find what is damaged, absurd or absent before torch is loaded, which takes seconds; then set up the environment."""
    check_model(Path(options.model))
    for adapter in options.adapters:
        open_adapter(adapter)
    check_ready(found)
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
