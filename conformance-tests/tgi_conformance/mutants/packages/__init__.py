"""Plugins with one fault each, detectable without a device."""

from __future__ import annotations

from importlib.metadata import EntryPoint

from tgi_conformance.mutants.base import Mutant, add
from tgi_core.backend import BackendBug, OpenOptions
from tgi_core.backend.registry import ENTRY_POINT_GROUP

_FAULTS = {
    "raises-at-import": ("The plugin raises when imported (a missing driver library).", ("package.loads",)),
    "imports-vendor": (
        "Importing the plugin imports its vendor's framework (TGI chose its device at import time).",
        ("package.import-clean",),
    ),
    "misses-a-hook": ("A plugin without backend_open.", ("package.loads",)),
    "misnamed": ("The manifest is that of the plugin it was copied from.", ("package.manifest",)),
    "branch-version": ("The version is a branch, so no report can be repeated (Gateway API's rule).", ("package.manifest",)),
    "needs-the-future": ("The plugin requires an API that this core does not have.", ("package.api",)),
    "requires-more-than-built": ("The plugin requires a newer API than it was built with.", ("package.api",)),
    "absent-without-reason": ("ABSENT without a reason (vllm#48277: the CPU was chosen silently).", ("package.probe",)),
    "probe-raises": ("The probe raises where the driver is missing.", ("package.probe",)),
    "probe-is-none": ("The probe returns nothing.", ("package.probe",)),
    "probe-crashes": ("The probe ends its process (a driver's assertion).", ("package.probe",)),
    "ready-without-device": ("READY without naming a device.", ("package.probe",)),
    "probe-imports-torch": ("The probe imports torch to count devices.", ("package.probe-clean",)),
}


def _never(options: OpenOptions) -> object:
    raise BackendBug("a package mutant opens nothing")


for _name, (_origin, _clauses) in _FAULTS.items():
    _module = f"tgi_conformance.mutants.packages.{_name.replace('-', '_')}"
    add(Mutant(_name, _origin, _never, _clauses, EntryPoint(_name, _module, ENTRY_POINT_GROUP)))
