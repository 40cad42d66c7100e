"""The package: what can be checked about a plugin without its device."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import EntryPoint

from tgi_conformance.child import ImportReport, probe_in_child
from tgi_conformance.clause import clause
from tgi_conformance.scenario import Scene
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
"""Frameworks and vendor libraries that a plugin may import only when it opens a session."""


def entry_of(scene: Scene) -> EntryPoint:
    """Return the entry point under test. Raises NotReached."""
    if scene.target.entry is None:
        raise NotReached("the session was passed in directly, so there is no package to check")
    return scene.target.entry


def seen(scene: Scene) -> ImportReport:
    """Return what a child process saw; it looks once."""
    return scene.target.seen or _looked(entry_of(scene).module)


@cache
def _looked(module: str) -> ImportReport:
    return probe_in_child(module)


def loaded(scene: Scene) -> Plugin:
    """Load the plugin as the core does. Raises Violation."""
    plugin = load(entry_of(scene))
    if plugin.status is PluginStatus.BROKEN:
        raise Violation("load", plugin.reason)
    return plugin


def _manifest(scene: Scene) -> Manifest:
    manifest = loaded(scene).manifest
    if manifest is None:
        raise Violation("manifest", "the plugin has no manifest")
    return manifest


@clause(
    "package.loads",
    "The module behind the entry point can be imported and implements the three plugin hooks.",
    Level.L0,
    essential=True,
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
    "The manifest has the entry point's name, a vendor, a version and a kind of device.",
    Level.L0,
)
def manifest(scene: Scene) -> None:
    """Ask twice: the manifest must not change."""
    found, again = _manifest(scene), _manifest(scene)
    if found != again:
        raise Violation("manifest", f"the manifest changed: {found}, then {again}")
    if found.name != entry_of(scene).name:
        raise Violation("manifest", f"the entry point is named {entry_of(scene).name}, the manifest {found.name}")
    if not re.fullmatch(r"\d+(\.\d+)*([abrc.+-].*)?", found.version):
        raise Violation("manifest", f"version {found.version!r} is not a version number")
    if not found.vendor or not re.fullmatch(r"[a-z][a-z0-9_-]*", found.device_kind):
        raise Violation(
            "manifest", f"no vendor or a malformed device kind: vendor {found.vendor!r}, device kind {found.device_kind!r}"
        )


@clause(
    "package.api",
    "The plugin requires an API version that the core provides and that is no newer than the one it was built against.",
    Level.L0,
)
def api(scene: Scene) -> None:
    """Major versions are equal, and the required version is not newer than the one it was built with."""
    found = _manifest(scene)
    if found.api_requires > found.api_built:
        raise Violation("api", f"it requires API {found.api_requires}, newer than {found.api_built}, which it was built with")
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
    """In a child process with a time limit."""
    found = seen(scene)
    if found.trouble:
        raise Violation("probe", found.trouble)
    if "wrong" in found.probe:
        raise Violation("probe", f"backend_probe returned {found.probe['wrong']}, not a Probe")
    status, reason, hint = found.probe["status"], found.probe["reason"], found.probe["hint"]
    if status == "ready" and not found.probe["devices"]:
        raise Violation("probe", "the probe says READY but names no device")
    if status != "ready" and not (reason and hint):
        raise Violation("probe", f"the probe says {status.upper()} without a reason or a hint: reason {reason!r}, hint {hint!r}")


@clause("package.probe-clean", "The probe does not import torch.", Level.L0)
def probe_clean(scene: Scene) -> None:
    """It finds its device without any heavy library."""
    if heavy := sorted(HEAVY & set(seen(scene).probing)):
        raise Violation("import", f"the probe imports {', '.join(heavy)}")
