"""The plugin hooks. Importing this module imports no torch."""

from __future__ import annotations

import logging
import os
from collections.abc import MutableMapping
from pathlib import Path

from tgi_backend_gaudi import __version__
from tgi_backend_gaudi.finding import find_modules, holder, probe
from tgi_core.backend import DeviceBusy, DeviceLost, Manifest, OpenOptions, Probe, ProbeStatus, Progress, hookimpl

_log = logging.getLogger("tgi_core.engine")

_SHAPES = "programs are compiled for all shapes of the limits that are set"
_COMPILED = "steps run as compiled programs, not as HPU graphs"
IGNORED = {
    **dict.fromkeys(("BATCH_BUCKET_SIZE", "PREFILL_BATCH_BUCKET_SIZE", "PAD_SEQUENCE_TO_MULTIPLE_OF", "BASE_IMAGE_TOKENS"), _SHAPES),
    **dict.fromkeys(("ENABLE_HPU_GRAPH", "LIMIT_HPU_GRAPH"), _COMPILED),
    "FLASH_ATTENTION_RECOMPUTE": "FusedSDPA always recomputes",
    "PROF_STEP": "profile with PyTorch's or Intel's own tools",
    "PT_HPU_ENABLE_LAZY_COLLECTIVES": "this backend does not use lazy mode",
    "PT_HPU_LAZY_MODE": "this backend does not use lazy mode",
    "QUANT_CONFIG": "fp8 by Intel's Neural Compressor is not supported; weights are dequantized",
    "SKIP_TOKENIZER_IN_TGI": "requests are text or token ids, as clients choose",
    "VLLM_SKIP_WARMUP": "nothing is compiled in traffic",
}
"""Variables of TGI's Gaudi backend that change nothing here, and why."""
DEFAULTS = {"PT_HPU_WEIGHT_SHARING": "0", "FUSER_ENABLE_MULTI_THREADED_INVOCATIONS": "1"}
_RECIPES_MB = 16384


@hookimpl
def backend_manifest() -> Manifest:
    """Who this plugin is."""
    return Manifest("gaudi", "tgi-core", __version__, api_built=(1, 2), api_requires=(1, 2), device_kind="gaudi")


@hookimpl
def backend_probe() -> Probe:
    """What the driver shows, and whether Intel's software is installed."""
    return probe()


@hookimpl
def backend_open(options: OpenOptions, progress: Progress) -> object:
    """Load the model. Raises InvalidModel, Unsupported, OutOfMemory, DeviceBusy, PeerLost; DeviceLost where there is no device."""
    from tgi_core.engine.weights.sizes import check_model

    check_model(Path(options.model))  # finds damaged models before torch is loaded, which takes seconds
    if (found := probe()).status is not ProbeStatus.READY:
        raise DeviceLost(f"{found.reason}; {found.hint}")
    modules = find_modules()
    if options.group.world == 1 and all(taken := [holder(module) for module in modules]):
        raise DeviceBusy(f"{modules[0].node} is taken by {taken[0]}, and none of {len(modules)} is free; hl-smi shows more")
    prepare(os.environ, options)
    from tgi_backend_gaudi.kit import GaudiKit
    from tgi_core.engine.static.session import open_static

    return open_static(options, GaudiKit(options.group, options.memory_fraction), progress)


def prepare(environment: MutableMapping[str, str], options: OpenOptions) -> None:
    """What the bridge reads when it is imported; logs what is ignored."""
    for name, why in IGNORED.items():
        if environment.get(name, "0") != "0":
            _log.warning("%s=%s is ignored: %s", name, environment[name], why)
    environment["PT_HPU_LAZY_MODE"] = "0"
    for name, value in DEFAULTS.items():
        environment.setdefault(name, value)
    if options.compile_cache:
        folder = Path(options.compile_cache) / f"recipes-{options.group.rank}"
        environment.setdefault("PT_HPU_RECIPE_CACHE_CONFIG", f"{folder},false,{_RECIPES_MB}")
