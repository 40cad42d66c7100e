"""The package: what can be said of a plugin without its device."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import EntryPoint

from tgi_conformance.child import Seen, look
from tgi_conformance.clause import clause
from tgi_conformance.scene import Scene
from tgi_conformance.verdict import Level, NotReached, Violation
from tgi_core.backend import API_VERSION, Manifest
from tgi_core.backend.registry import Plugin, PluginStatus, load

HEAVY = frozenset(
    [
        "cupy",
        "deepspeed",
        "habana_frameworks",
        "intel_extension_for_pytorch",
        "jax",
        "jaxlib",
        "libneuronxla",
        "neuronxcc",
        "numba",
        "onnxruntime",
        "openvino",
        "optimum",
        "paddle",
        "poptorch",
        "safetensors",
        "tensorflow",
        "tensorrt",
        "torch",
        "torch_mlir",
        "torch_npu",
        "torch_neuronx",
        "torch_xla",
        "torchvision",
        "transformers",
        "triton",
        "tvm",
        "vllm",
    ]
)
"""Frameworks and vendor libraries that a plugin imports when it is opened, not before."""


def entry_of(scene: Scene) -> EntryPoint:
    """The entry point under test."""
    if scene.target.entry is None:
        raise NotReached("the session was handed over in person: there is no package to look at")
    return scene.target.entry


def seen(scene: Scene) -> Seen:
    """What a child process saw, looked once."""
    return scene.target.seen or _looked(entry_of(scene).module)


@cache
def _looked(module: str) -> Seen:
    return look(module)


def loaded(scene: Scene) -> Plugin:
    """The plugin as the core loads it."""
    plugin = load(entry_of(scene))
    if plugin.status is PluginStatus.BROKEN:
        raise Violation("load", plugin.reason)
    return plugin


def _manifest(scene: Scene) -> Manifest:
    manifest = loaded(scene).manifest
    if manifest is None:
        raise Violation("manifest", "there is no manifest")
    return manifest


@clause(
    "package.loads", "The module behind the entry point imports, and implements the three plugin hooks.", Level.L0, essential=True
)
def loads(scene: Scene) -> None:
    """In this process, as the core does it."""
    loaded(scene)


@clause("package.import-clean", "Importing the plugin imports neither torch nor a vendor library.", Level.L0)
def import_clean(scene: Scene) -> None:
    """In a fresh process."""
    found = seen(scene)
    if found.trouble and not found.imported:
        raise Violation("import", f"importing {entry_of(scene).module} in a fresh process: {found.trouble}")
    if heavy := sorted(HEAVY & set(found.imported)):
        raise Violation("import", f"importing {entry_of(scene).module} imports {', '.join(heavy)}")


@clause(
    "package.manifest",
    "The manifest names the plugin as its entry point does, its vendor, its version and its kind of device.",
    Level.L0,
)
def manifest(scene: Scene) -> None:
    """Asked twice, since it is pure."""
    found, again = _manifest(scene), _manifest(scene)
    if found != again:
        raise Violation("manifest", f"it says {found}, then {again}")
    if found.name != entry_of(scene).name:
        raise Violation("manifest", f"the entry point is called {entry_of(scene).name}, the manifest {found.name}")
    if not re.fullmatch(r"\d+(\.\d+)*([abrc.+-].*)?", found.version):
        raise Violation("manifest", f"version {found.version!r} is no version number")
    if not found.vendor or not re.fullmatch(r"[a-z][a-z0-9_-]*", found.device_kind):
        raise Violation("manifest", f"vendor {found.vendor!r}, device kind {found.device_kind!r}")


@clause(
    "package.api",
    "It was built against the API of this core or a newer minor one, and requires none that the core lacks.",
    Level.L0,
)
def api(scene: Scene) -> None:
    """Majors equal; what is required is no newer than what it was built with."""
    found = _manifest(scene)
    if found.api_requires > found.api_built:
        raise Violation("api", f"it requires API {found.api_requires} and was built with {found.api_built}")
    plugin = loaded(scene)
    if plugin.status is PluginStatus.INCOMPATIBLE:
        raise Violation("api", f"{plugin.reason} ({API_VERSION[0]}.{API_VERSION[1]})")


@clause(
    "package.probe",
    "The probe answers in time: READY with its devices, or ABSENT or BROKEN with a reason and a hint.",
    Level.L0,
    essential=True,
)
def probe(scene: Scene) -> None:
    """In a child process, with a time limit."""
    found = seen(scene)
    if found.trouble:
        raise Violation("probe", found.trouble)
    if "wrong" in found.probe:
        raise Violation("probe", f"backend_probe returned {found.probe['wrong']}, not a Probe")
    status, reason, hint = found.probe["status"], found.probe["reason"], found.probe["hint"]
    if status == "ready" and not found.probe["devices"]:
        raise Violation("probe", "it is READY and names no device")
    if status != "ready" and not (reason and hint):
        raise Violation("probe", f"it is {status.upper()} with reason {reason!r} and hint {hint!r}")


@clause("package.probe-clean", "The probe imports no torch.", Level.L0, provisional=True)
def probe_clean(scene: Scene) -> None:
    """Where its device can be found without."""
    if heavy := sorted(HEAVY & set(seen(scene).probing)):
        raise Violation("import", f"the probe imports {', '.join(heavy)}")
