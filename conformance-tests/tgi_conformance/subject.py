"""Resolve a backend's name to what the suite needs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

from tgi_conformance.golden import default_model
from tgi_conformance.target import Target, quiet
from tgi_core.backend import Manifest, OpenOptions, Processes
from tgi_core.backend.registry import Plugin, installed, load
from tgi_core.errors import StartupError
from tgi_core.model_files import read_json

MUTANT = "mutant:"
"""Prefix of names of the suite's own broken backends and correct twins."""

GENERATED = "generated:"
"""Prefix of names of randomly generated backends: `generated:SEED:NUMBER`."""


class UnknownBackend(ValueError):
    """There is no such backend or model; the message says what there is."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A target with the distribution and manifest of its package, if it loads."""

    target: Target
    distribution: str = ""
    manifest: Manifest | None = None


def resolve(name: str, model: Path | None = None, dtype: str = "float32") -> Subject:
    """Find a backend by name, or one of the suite's mutants. Raises UnknownBackend."""
    if model is not None:
        _check_model(model)
    if name.startswith((MUTANT, GENERATED)):
        return _mutant(name, model, dtype)
    try:
        entries = {entry.name: entry for entry in installed()}
    except StartupError as error:
        raise UnknownBackend(str(error)) from error
    if name not in entries:
        known = ", ".join(sorted(entries)) or "none"
        raise UnknownBackend(f"--backend {name}: not installed (installed: {known})")
    return packaged(entries[name], model, dtype)


def packaged(entry: EntryPoint, model: Path | None = None, dtype: str = "float32") -> Subject:
    """Return the backend of an entry point."""
    plugin = load(entry)
    kind = plugin.device_kind

    def open_session(options: OpenOptions) -> object:
        return _usable(plugin).open(options, quiet)

    one = plugin.manifest is not None and plugin.manifest.processes is Processes.ONE
    target = Target(entry.name, open_session, model or default_model(kind), kind, dtype, entry, one, built=plugin.built)
    return Subject(target, plugin.distribution, plugin.manifest)


def _usable(plugin: Plugin) -> Plugin:
    if plugin.hooks is None:
        raise StartupError(f"backend {plugin.name}: {plugin.status.value}: {plugin.reason}")
    return plugin


def _mutant(name: str, model: Path | None, dtype: str) -> Subject:
    if name.startswith(GENERATED):
        try:
            drawn: Target = importlib.import_module("tgi_conformance.generated").named(name).target()
        except ValueError as error:
            raise UnknownBackend(f"--backend {name}: the name of a generated mutant is {GENERATED}SEED:NUMBER") from error
        return Subject(drawn.on(model or drawn.model, dtype), "tgi-conformance")
    mutants = importlib.import_module("tgi_conformance.mutants")
    short = name.removeprefix(MUTANT)
    if short not in mutants.EVERY:
        raise UnknownBackend(f"--backend {name}: no such mutant or twin; there are {', '.join(sorted(mutants.EVERY))}")
    target: Target = mutants.EVERY[short].target(name)
    return Subject(target.on(model or target.model, dtype), "tgi-conformance")


def _check_model(model: Path) -> None:
    try:
        read_json(model / "config.json")
    except StartupError as error:
        raise UnknownBackend(f"--model {model}: {error}") from error
