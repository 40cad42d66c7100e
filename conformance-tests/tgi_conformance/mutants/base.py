"""Mutants, and the sound session from which each is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, TypeVar

from tgi_conformance.golden import default_model
from tgi_conformance.target import Target
from tgi_core.backend import Group, Handle, OpenOptions
from tgi_core.backend.batch_tracker import BatchTracker, RowState
from tgi_core.backend.reference import PROPOSALS, ReferenceSession, backend_open
from tgi_core.model_files import read_json


class Sound(ReferenceSession):
    """The reference backend's session, with access to its internal state."""

    options: OpenOptions = OpenOptions("")
    """The options it was opened with."""

    several_ranks = False
    """Whether it opens in a group; the reference backend does not."""

    @property
    def live_batches(self) -> dict[Handle, list[RowState]]:
        """Live batches by handle."""
        return self.tracker._batches

    @property
    def tracker(self) -> BatchTracker:
        """The tracker, available after warmup."""
        return self._open_tracker

    def row(self, id: int) -> RowState | None:
        """Return a live row, or None."""
        return next((row for rows in self.live_batches.values() for row in rows if row.request.id == id), None)


Open = Callable[[OpenOptions], object]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken backend, or a correct twin if `killed_by` is empty. `origin` describes the defect and where it was seen."""

    name: str
    origin: str
    open: Open
    killed_by: tuple[str, ...] = ()
    entry: EntryPoint | None = None
    dtype: str = "float32"
    """The dtype it runs in."""

    def target(self, name: str = "") -> Target:
        """Return the mutant as a target of the suite."""
        return Target(name or f"mutant:{self.name}", self.open, Path(default_model("none")), "none", self.dtype, self.entry)


_ALL: dict[str, Mutant] = {}
_Kind = TypeVar("_Kind", bound=type[Sound])


def opening(kind: type[Sound]) -> Open:
    """Return a function that opens a model with this kind of session, as the reference backend does."""

    def open_session(options: OpenOptions) -> object:
        backend_open(replace(options, group=Group()) if kind.several_ranks else options)
        config = read_json(Path(options.model) / "config.json")
        adapters = tuple(adapter.name for adapter in options.adapters)
        sizes = int(config["vocab_size"]), int(config["max_position_embeddings"])
        given: dict[str, Any] = {"proposals": PROPOSALS} if options.speculator else {}
        session = kind(*sizes, masks=options.masks, adapters=adapters, **given)
        session.options = options
        return session

    return open_session


def mutant(name: str, *killed_by: str) -> Callable[[_Kind], _Kind]:
    """Register a session class as a mutant, or as a twin if no clause is named."""

    def register(kind: _Kind) -> _Kind:
        add(Mutant(name, (kind.__doc__ or "").strip(), opening(kind), killed_by))
        return kind

    return register


def add(made: Mutant) -> None:
    """Register a mutant that opens in its own way."""
    if made.name in _ALL:
        raise ValueError(f"two mutants have the name {made.name}")
    _ALL[made.name] = made


def mutants() -> dict[str, Mutant]:
    """Return the mutants that clauses must kill."""
    return {name: item for name, item in _ALL.items() if item.killed_by}


def twins_of() -> dict[str, Mutant]:
    """Return the twins that no clause may kill."""
    return {name: item for name, item in _ALL.items() if not item.killed_by}
