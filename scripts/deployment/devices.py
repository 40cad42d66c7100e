"""What a pod needs for each device: resources, tolerations, groups, variables and time to start."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

CACHE = "/data/.cache"
"""Folder of the volume for what is compiled at run time."""

_TRITON = {"TRITON_CACHE_DIR": f"{CACHE}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/inductor"}
_STATIC = {"max_batch_size": 32, "max_total_tokens": 4096}


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of device. `resource` is what its device plugin offers; a pod gets `deviceCount` of it."""

    backend: str
    needs: str
    """What the cluster's administrator installs first."""
    resource: str = ""
    cpu: str = "4"
    memory: str = "16Gi"
    memoryLimit: str = "64Gi"
    tolerations: tuple[dict[str, str], ...] = ()
    supplementalGroups: tuple[int, ...] = ()
    """Groups that may open the device's files."""
    environment: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings that differ from the defaults."""
    startupMinutes: int = 30
    """Time to download, load and compile, before the pod is restarted."""
    maxSurge: int = 0
    """Pods that a rollout may add. A device plugin rarely has a spare device."""
    nodes: bool = True
    """Whether ranks on several machines are possible."""

    def described(self) -> dict[str, Any]:
        """Return it for the chart."""
        return {name: value for name, value in asdict(self).items() if name != "needs"}


def _taint(key: str) -> tuple[dict[str, str], ...]:
    return ({"key": key, "operator": "Exists", "effect": "NoSchedule"},)


DEVICES = (
    Device("cpu", "nothing: it runs on any node", memory="8Gi", memoryLimit="32Gi", maxSurge=1),
    Device(
        "cuda",
        "NVIDIA's GPU operator, or its device plugin",
        resource="nvidia.com/gpu",
        tolerations=_taint("nvidia.com/gpu"),
        environment={**_TRITON, "CUDA_CACHE_PATH": f"{CACHE}/nv"},
    ),
    Device(
        "rocm",
        "AMD's GPU operator, or its device plugin",
        resource="amd.com/gpu",
        tolerations=_taint("amd.com/gpu"),
        supplementalGroups=(44, 109),
        environment={**_TRITON, "MIOPEN_USER_DB_PATH": f"{CACHE}/miopen", "MIOPEN_CUSTOM_CACHE_DIR": f"{CACHE}/miopen"},
    ),
    Device(
        "xpu",
        "Intel's GPU device plugin, which offers gpu.intel.com/xe for nodes with the driver xe",
        resource="gpu.intel.com/i915",
        tolerations=_taint("gpu.intel.com/i915"),
        supplementalGroups=(44, 109),
        environment={**_TRITON, "SYCL_CACHE_DIR": f"{CACHE}/sycl", "NEO_CACHE_DIR": f"{CACHE}/neo"},
    ),
    Device(
        "gaudi",
        "Intel's base operator for Gaudi, or its device plugin and the nodes' default container runtime `habana`",
        resource="habana.ai/gaudi",
        memory="64Gi",
        memoryLimit="128Gi",
        tolerations=_taint("habana.ai/gaudi"),
        environment={"HABANA_LOGS": "/tmp/habana_logs"},  # noqa: S108  in the pod
        settings={**_STATIC, "compile_cache": "/data/.compiled/gaudi"},
        startupMinutes=60,
    ),
    Device(
        "neuron",
        "AWS's device plugin for Neuron, which also offers single cores as aws.amazon.com/neuroncore",
        resource="aws.amazon.com/neuron",
        tolerations=_taint("aws.amazon.com/neuron"),
        environment={"NEURON_COMPILE_CACHE_URL": "/data/.compiled/neff"},
        settings={**_STATIC, "max_batch_size": 8, "compile_cache": "/data/.compiled/neuron"},
        startupMinutes=60,
        nodes=False,
    ),
)
"""All devices; a group's number is that of `video` and `render` on Ubuntu."""
