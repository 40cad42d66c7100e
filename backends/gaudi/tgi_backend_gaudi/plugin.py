"""The plugin hooks. Importing this module does not import torch."""

from __future__ import annotations

import logging
import os
from collections.abc import MutableMapping
from pathlib import Path

from tgi_backend_gaudi import __version__
from tgi_backend_gaudi.discovery import check_free, probe
from tgi_core.backend import Manifest, OpenOptions, Probe, Progress, hookimpl
from tgi_core.engine.accelerator.discovery import check_ready

_log = logging.getLogger("tgi_core.engine")

_SHAPES = "programs are compiled for all shapes within the limits"
_LAZY = "this backend runs in eager mode, by torch.compile"
IGNORED = {
    **dict.fromkeys(
        ("BASE_IMAGE_TOKENS", "BATCH_BUCKET_SIZE", "PAD_SEQUENCE_TO_MULTIPLE_OF", "PREFILL_BATCH_BUCKET_SIZE"), _SHAPES
    ),
    **dict.fromkeys(("ENABLE_HPU_GRAPH", "LIMIT_HPU_GRAPH", "PT_HPU_ENABLE_LAZY_COLLECTIVES", "PT_HPU_LAZY_MODE"), _LAZY),
    "FLASH_ATTENTION_RECOMPUTE": "FusedSDPA always recomputes",
    "PROF_STEP": "use the profilers of PyTorch or Intel",
    "QUANT_CONFIG": "fp8 by Intel's Neural Compressor is not supported",
    "SKIP_TOKENIZER_IN_TGI": "the server always tokenizes",
    "VLLM_SKIP_WARMUP": "nothing is compiled in traffic",
}
"""Variables of TGI's Gaudi backend that change nothing here, and why."""
DEFAULTS = {"PT_HPU_WEIGHT_SHARING": "0", "FUSER_ENABLE_MULTI_THREADED_INVOCATIONS": "1"}
"""The values that vLLM's plugin for this device sets."""


@hookimpl
def backend_manifest() -> Manifest:
    """The plugin's manifest."""
    return Manifest("gaudi", "tgi-core", __version__, api_built=(1, 10), api_requires=(1, 2), device_kind="gaudi")


@hookimpl
def backend_probe() -> Probe:
    """Detect devices by the driver's files, and check that Intel's software is installed."""
    return probe()


@hookimpl
def backend_open(options: OpenOptions, progress: Progress) -> object:
    """Load the model. Raises InvalidModel, Unsupported, OutOfMemory, DeviceBusy, PeerLost; DeviceLost if there is no device."""
    from tgi_core.engine.weights.sizes import check_model

    check_model(Path(options.model))  # finds damaged models before torch is loaded, which takes seconds
    check_ready(probe())
    if options.group.world == 1:  # otherwise the other ranks hold some
        check_free()
    prepare(os.environ, options)
    from tgi_backend_gaudi.runtime import acquire

    device = acquire(options.group)
    from tgi_backend_gaudi.kit import GaudiKit
    from tgi_core.engine.static.session import open_static

    return open_static(options, GaudiKit(device, options.memory_fraction), progress)


def prepare(environment: MutableMapping[str, str], options: OpenOptions) -> None:
    """Set the variables that the bridge reads when it is imported; log those that are ignored."""
    for name, why in IGNORED.items():
        if environment.get(name, "0") != "0":
            _log.warning("%s=%s is ignored: %s", name, environment[name], why)
    environment["PT_HPU_LAZY_MODE"] = "0"
    for name, value in DEFAULTS.items():
        environment.setdefault(name, value)
    if options.compile_cache:  # directory, emptied at the start, MB; recipes are found by their contents
        recipes = Path(options.compile_cache) / f"recipes-{options.group.rank}"
        environment.setdefault("PT_HPU_RECIPE_CACHE_CONFIG", f"{recipes},false,16384")
