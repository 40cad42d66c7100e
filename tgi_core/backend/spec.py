"""Hooks that a backend implements.

Plugin hooks are module-level functions of the module that the entry point names; importing that module must import neither torch
nor a vendor library. Session hooks are methods of the object that `backend_open` returns, one session per rank. A hook may omit
arguments that it does not need. No hook returns None.
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
    Encoded,
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
    """Hooks of a plugin module, registered as an entry point in the group `tgi.backends`."""

    @hookspec(firstresult=True)
    def backend_manifest(self) -> Manifest:
        """Identify this plugin. No side effects."""

    @hookspec(firstresult=True)
    def backend_probe(self) -> Probe:
        """Detect the device. Runs in a child process. Avoid importing torch where possible; never raise because the device is
        absent."""

    @hookspec(firstresult=True)
    def backend_open(self, options: OpenOptions, progress: Progress) -> object:
        """Load the model on this rank and return the session. Raises InvalidModel, DeviceBusy, OutOfMemory, Unsupported."""

    @hookspec(firstresult=True)
    def backend_plan(self, options: OpenOptions, progress: Progress, free_bytes: int | None) -> object:
        """Optional, since 1.6: choose as `backend_open` would, from the model's config and the headers of its weights, and return a session
        without weights. Its `capabilities`, `warmup` and `close` are those that the real one is expected to have; nothing else is called.
        `free_bytes` is the memory for weights and cache; None means what is free now. Raises InvalidModel, Unsupported."""


class SessionSpec(Protocol):
    """Hooks of a session object. Verbs are called serially from one thread, off the event loop, and take effect in call order.

    A verb that raises has changed nothing. An error from `rows` ends that step's batch and everything derived from it: every batch
    since made from it by a filter, a merge or added rows, with all of its rows, and the steps of those batches. Such steps are
    never read, nor are steps launched before `clear(None)`: they are skipped, and the next step read is a later one. If `rows`
    raises InvalidRequest without request ids, the session does not know a step that it launched, and the session is lost.
    """

    @hookspec(firstresult=True)
    def capabilities(self) -> Capabilities:
        """Return what this session supports; constant for its lifetime."""

    @hookspec(firstresult=True)
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Reserve the cache, compile the shapes that will run, and return the promised limits. Called once per session. Raises
        OutOfMemory."""

    @hookspec(firstresult=True)
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Start new requests, and continue the live batch `cached` (or EMPTY) in the same step.

        Raises InvalidRequest, UnknownBatch, Unsupported, CapacityExceeded, OutOfMemory.
        """

    @hookspec(firstresult=True)
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Continue one or more distinct live batches, merged into one.

        Raises InvalidRequest, UnknownBatch, CapacityExceeded, OutOfMemory; Unsupported for a part of a prompt that is not declared.
        """

    @hookspec(firstresult=True)
    def rows(self, step: Step) -> Rows:
        """Wait for a step and return its rows. Each step is read once, in order, except skipped ones. All of its writes are
        complete on return.

        Raises InvalidRequest for a step that was read before or never launched, and any error that the step failed with.
        """

    @hookspec(firstresult=True)
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Keep only the rows in `keep`; `keep=()` clears the batch. Host bookkeeping only, never waits. Steps launched later
        exclude the removed rows.

        Raises UnknownBatch, UnknownRequest.
        """

    @hookspec(firstresult=True)
    def clear(self, batch: Handle | None) -> Cleared:
        """Drop one batch, or all batches (None). Host bookkeeping, never waits. Raises UnknownBatch."""

    @hookspec(firstresult=True)
    def encode(self, item: bytes) -> Encoded:
        """Optional, since 1.10: compute ahead what steps need of an image, an item of `Request.media`, before a request with it is
        started. No verb: called from another thread while verbs run, one image at a time, and never after `close`. Steps that run
        meanwhile go on. A step computes what it needs and does not find.

        Raises InvalidRequest for an image that does not fit the model.
        """

    @hookspec(firstresult=True)
    def stats(self) -> Stats:
        """Return counters since the session opened."""

    @hookspec(firstresult=True)
    def close(self) -> Closed:
        """Release all resources. Idempotent. May wait for launched steps, whose results are lost."""
