"""The hooks that a backend implements.

Two tiers. Plugin hooks are module-level functions of the module that the entry point names; importing it imports neither torch
nor a vendor library. Session hooks are methods of the object that `backend_open` returns, one session per rank. A hook names only
the arguments that it needs. No hook returns None.
"""

from __future__ import annotations

from typing import Protocol

import pluggy

from tgi_core.backend.callbacks import Progress
from tgi_core.backend.types import (
    Capabilities,
    Capacity,
    Cleared,
    Closed,
    Grant,
    Handle,
    Manifest,
    OpenOptions,
    Probe,
    Request,
    Rows,
    Stats,
    Step,
    WarmupPlan,
)

PROJECT = "tgi"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class PluginSpec(Protocol):
    """What the module behind an entry point of the group `tgi.backends` defines."""

    @hookspec(firstresult=True)
    def backend_manifest(self) -> Manifest:
        """Who this plugin is. Pure."""

    @hookspec(firstresult=True)
    def backend_probe(self) -> Probe:
        """Whether its device is here. Runs in a child process; avoids importing torch where possible; never raises on absence."""

    @hookspec(firstresult=True)
    def backend_open(self, options: OpenOptions, progress: Progress) -> object:
        """Load the model on this rank and return the session. Raises InvalidModel, DeviceBusy, OutOfMemory, Unsupported."""


class SessionSpec(Protocol):
    """What a session object defines. Verbs are serial, in one thread, off the event loop, and take effect in call order.

    An error from a verb changed nothing. An error from `rows` ends that step's batch and everything derived from it: each batch that a
    filter, a merge or new rows have since made of it, with all of its rows, and the steps of those. Such steps are never read, nor are
    those launched before `clear(None)`: they are given up, and a step after them is read next. An InvalidRequest of `rows` that names
    no request says that the session does not know a step that it has launched: the session is lost.
    """

    @hookspec(firstresult=True)
    def capabilities(self) -> Capabilities:
        """What this session can do; constant for its life."""

    @hookspec(firstresult=True)
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Reserve the cache, compile what will run, and promise limits. Once per session. Raises OutOfMemory."""

    @hookspec(firstresult=True)
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Start new requests, and go on with the live batch `cached` (or EMPTY) in the same step.

        Raises InvalidRequest, UnknownBatch, Unsupported, CapacityExceeded, OutOfMemory.
        """

    @hookspec(firstresult=True)
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Go on with one or more distinct live batches, merged into one. Raises InvalidRequest, UnknownBatch, OutOfMemory."""

    @hookspec(firstresult=True)
    def rows(self, step: Step) -> Rows:
        """Wait for a step and return its rows; each step is read once, in order, but for those that are given up. All its writes are
        done on return.

        Raises InvalidRequest for a step that was read before or never launched, and whatever the step failed with.
        """

    @hookspec(firstresult=True)
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Keep the named rows. Host bookkeeping, never waits; a removed row is in no step launched later. `keep=()` clears.

        Raises UnknownBatch, UnknownRequest.
        """

    @hookspec(firstresult=True)
    def clear(self, batch: Handle | None) -> Cleared:
        """Drop one batch, or every batch (None). Raises UnknownBatch."""

    @hookspec(firstresult=True)
    def stats(self) -> Stats:
        """Counters since open."""

    @hookspec(firstresult=True)
    def close(self) -> Closed:
        """Give everything back. Idempotent."""
