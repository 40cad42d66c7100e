"""Backend discovery: read package metadata, load each plugin separately, then probe it in a child process.

A faulty plugin never affects the others. A backend chosen by name is used or reported as unusable (`find`). Otherwise `select`
picks the only accelerator that is ready, or the CPU if no accelerator plugin is broken.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from tgi_core.backend.callbacks import Progress
from tgi_core.backend.errors import BackendError, Unsupported
from tgi_core.backend.spec import PROJECT, PluginSpec
from tgi_core.backend.types import API_VERSION, Manifest, OpenOptions, Probe, ProbeStatus
from tgi_core.errors import StartupError

ENTRY_POINT_GROUP = "tgi.backends"
BY_NAME_ONLY = frozenset({"emulated", "none"})
"""Device kinds that are used only when chosen by name."""


class PluginStatus(Enum):
    """Outcome of loading a plugin."""

    OK = "ok"
    INCOMPATIBLE = "incompatible"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry point and the outcome of loading it."""

    name: str
    distribution: str
    status: PluginStatus
    reason: str = ""
    traceback: str = ""
    manifest: Manifest | None = None
    hooks: Any = None

    @property
    def device_kind(self) -> str:
        """Device kind from the manifest, or "" without a manifest."""
        return self.manifest.device_kind if self.manifest else ""

    @property
    def built(self) -> tuple[int, int]:
        """Contract version the plugin was built against; this core's version without a manifest."""
        return self.manifest.api_built if self.manifest else API_VERSION

    def open(self, options: OpenOptions, progress: Progress) -> object:
        """Open the plugin's session for one rank."""
        return self.hooks.backend_open(options=options, progress=progress)

    def plan(self, options: OpenOptions, progress: Progress, free_bytes: int | None) -> object:
        """A session without weights, for its limits. Raises Unsupported if the plugin makes none."""
        if not self.hooks.backend_plan.get_hookimpls():
            raise Unsupported("this backend plans no model before it is loaded")
        return self.hooks.backend_plan(options=options, progress=progress, free_bytes=free_bytes)


def installed() -> tuple[EntryPoint, ...]:
    """Installed entry points sorted by name, without importing them. Raises StartupError if two distributions use the same name."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        twin = found.setdefault(entry.name, entry)
        if twin.value != entry.value:
            raise StartupError(
                f"two packages provide a backend named {entry.name}: {_distribution(twin)} and {_distribution(entry)};"
                " uninstall one"
            )
    return tuple(found[name] for name in sorted(found))


def load(entry: EntryPoint) -> Plugin:
    """Import one plugin and check its contract. Errors are recorded in the result, not raised."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(PluginSpec)
    try:
        manager.register(entry.load(), name=entry.name)
        missing = [hook for hook in ("backend_manifest", "backend_probe", "backend_open") if not _implemented(manager, hook)]
        if missing:
            return _broken(entry, f"implements no {', '.join(missing)}")
        manifest = manager.hook.backend_manifest()
    except Exception as error:  # noqa: BLE001  a plugin may raise anything
        return _broken(entry, f"{type(error).__name__}: {error}", traceback.format_exc())
    if not isinstance(manifest, Manifest):
        return _broken(entry, f"backend_manifest returned {type(manifest).__name__}")
    reason = incompatibility(manifest)
    status = PluginStatus.INCOMPATIBLE if reason else PluginStatus.OK
    return Plugin(entry.name, _distribution(entry), status, reason, manifest=manifest, hooks=manager.hook)


def incompatibility(manifest: Manifest, core: tuple[int, int] = API_VERSION) -> str:
    """Why this core cannot run a plugin, or "". The majors must be equal and the required minor no newer than the core's."""
    major, minor = manifest.api_requires
    if (major, manifest.api_built[0]) == (core[0], core[0]) and minor <= core[1]:
        return ""
    return f"needs backend API {major}.{minor}, this tgi-core has {core[0]}.{core[1]}"


def find(name: str) -> Plugin:
    """Load a plugin by name. Raises StartupError with the reason if it cannot be used."""
    entries = {entry.name: entry for entry in installed()}
    if name not in entries:
        known = ", ".join(sorted(entries)) or "none"
        raise StartupError(f"--backend {name}: not installed (installed: {known}); try: pip install tgi-backend-{name}")
    plugin = load(entries[name])
    if plugin.status is not PluginStatus.OK:
        raise StartupError(f"--backend {name}: {plugin.status.value}: {plugin.reason}")
    return plugin


def select(probed: Iterable[tuple[Plugin, Probe]]) -> Plugin:
    """Choose a plugin when none was named. Raises StartupError that lists the candidates."""
    candidates = [(plugin, probe) for plugin, probe in probed if plugin.device_kind not in BY_NAME_ONLY]
    ready = [(plugin, probe) for plugin, probe in candidates if probe.status is ProbeStatus.READY]
    accelerators = [plugin for plugin, _ in ready if plugin.device_kind != "cpu"]
    broken = [
        (plugin, probe) for plugin, probe in candidates if probe.status is ProbeStatus.BROKEN and plugin.device_kind != "cpu"
    ]
    if len(accelerators) > 1:
        names = ", ".join(plugin.name for plugin in accelerators)
        raise StartupError(f"several accelerators are ready: {names}; choose one with --backend")
    if accelerators:
        return accelerators[0]
    if broken:
        text = "; ".join(f"{plugin.name}: {probe.reason}" for plugin, probe in broken)
        raise StartupError(f"an accelerator backend is broken ({text}); fix it, or choose one with --backend")
    if ready:
        return ready[0][0]
    reasons = "; ".join(f"{plugin.name}: {probe.reason}" for plugin, probe in candidates)
    raise StartupError(f"no backend is ready{f' ({reasons})' if reasons else ''}; try: pip install tgi-backend-cpu")


def open_backend(plugin: Plugin, options: OpenOptions, progress: Progress) -> object:
    """Open a session. Raises StartupError for any exception; an unexpected one is reported with the plugin's name."""
    try:
        return plugin.open(options, progress)
    except BackendError as error:
        raise StartupError(str(error)) from error
    except Exception as error:
        raise StartupError(f"backend {plugin.name} failed to open: {type(error).__name__}: {error}") from error


def _implemented(manager: pluggy.PluginManager, hook: str) -> bool:
    return bool(getattr(manager.hook, hook).get_hookimpls())


def _broken(entry: EntryPoint, reason: str, trace: str = "") -> Plugin:
    return Plugin(entry.name, _distribution(entry), PluginStatus.BROKEN, reason, trace)


def _distribution(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown"
