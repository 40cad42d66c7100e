"""Error texts of the Neuron runtime and compiler."""

from __future__ import annotations

from tgi_core.engine.accelerator.failures import FailureTexts

FAILURES = FailureTexts(
    busy=("core(s) not available", "nerr_resource_nc", "not be initialized", "cannot be initialized", "resource busy"),
    memory=("failed to allocate", "nrt_resource", "resource_exhausted"),
    compiler=("neuronxcc", "neuronx-cc", "[ncc", "compilation failed"),
    lost=("nrt_", "nerr_"),
    tool="neuron-ls",
)
