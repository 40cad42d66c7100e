"""An open backend session with its hook wrappers. The core calls sessions only through this class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import pluggy

from tgi_core.backend.callbacks import Progress
from tgi_core.backend.errors import BackendBug, BackendError, Unsupported
from tgi_core.backend.sampling_spec import needed_fields, newer_fields
from tgi_core.backend.spec import PROJECT, SessionSpec
from tgi_core.backend.types import (
    API_VERSION,
    Adapter,
    CacheKind,
    Capabilities,
    Capacity,
    Cleared,
    Closed,
    Encoded,
    Grant,
    Handle,
    Request,
    Rows,
    Stats,
    Step,
    WarmupPlan,
)

T = TypeVar("T")

HOOKS = ("capabilities", "warmup", "prefill", "decode", "rows", "filter", "clear", "stats", "close")


class _Manager(pluggy.PluginManager):
    """Searches only an object's own attributes and its class's marked hooks. Stock pluggy inspects every inherited attribute of
    every session, which takes longer than opening a small one."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        """Return a hook's options, or None for anything else."""
        kind: type = type(plugin)
        held = getattr(plugin, "__dict__", ())
        return super().parse_hookimpl_opts(plugin, name) if name in held or name in _marked(kind) else None

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> Any:
        """Return the options of a hook specification, or None for anything else."""
        return None if name.startswith("__") else super().parse_hookspec_opts(module_or_class, name)


@cache
def _marked(kind: type) -> frozenset[str]:
    """Names of a class's hooks."""
    return frozenset(name for name in dir(kind) if hasattr(getattr(kind, name, None), f"{PROJECT}_impl"))


class Session:
    """The session hooks as methods. Any other exception or a None result becomes BackendBug, so callers see only `BackendError`.

    `wrappers` are pluggy plugins of hook wrappers, outermost first. `built` is the contract version that the plugin was written
    against; sampling fields added later are removed from its capabilities and never passed to it.
    """

    def __init__(
        self, implementation: object, name: str, wrappers: Sequence[object] = (), *, built: tuple[int, int] = API_VERSION
    ) -> None:
        self.name, self.implementation = name, implementation
        self._newer = newer_fields(built)
        self._takes_back = built >= (1, 8)
        if implementation is None:  # pluggy's "no result"; registering it would look like a session without hooks
            raise BackendBug(f"backend {name}: backend_open returned None")
        self._manager = _Manager(PROJECT)
        self._manager.add_hookspecs(SessionSpec)
        try:
            self._manager.register(implementation, name="backend")
        except pluggy.PluginValidationError as error:
            raise BackendBug(f"backend {name}: {error}") from error
        self._check_complete()
        for wrapper in reversed(wrappers):  # pluggy calls the last registered wrapper first
            self._manager.register(wrapper)

    def wrap(self, wrapper: object) -> None:
        """Add a plugin of hook wrappers. Hooks marked `trylast` run inside the others."""
        self._manager.register(wrapper)

    def capabilities(self) -> Capabilities:
        """See `SessionSpec`, as for all hooks below."""
        found = self._call("capabilities", Capabilities)
        return replace(found, sampling=found.sampling - self._newer) if self._newer else found

    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Warm up once. A plugin of an older contract keeps the blocks of a WINDOW group for a row's whole life, as it does those of
        others."""
        capacity = self._call("warmup", Capacity, plan=plan, progress=progress)
        if self._takes_back or not any(group.kind is CacheKind.WINDOW for group in capacity.groups):
            return capacity
        groups = (
            replace(each, kind=CacheKind.FULL, window=None) if each.kind is CacheKind.WINDOW else each for each in capacity.groups
        )
        return replace(capacity, groups=tuple(groups))

    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Start new requests."""
        if self._newer:
            self._check_known(batch)
        return self._call("prefill", Step, batch=batch, cached=cached, grants=grants)

    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Continue batches."""
        return self._call("decode", Step, batches=batches, grants=grants)

    def rows(self, step: Step) -> Rows:
        """Wait for a step and return its rows."""
        rows = self._call("rows", Rows, step=step)
        if rows.step != step.id:
            raise BackendBug(f"backend {self.name}: rows of step {step.id} returned those of step {rows.step}")
        return rows

    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Keep some rows."""
        return self._call("filter", Handle, batch=batch, keep=keep)

    def clear(self, batch: Handle | None) -> Cleared:
        """Drop a batch, or all."""
        return self._call("clear", Cleared, batch=batch)

    def encode(self, item: bytes) -> Encoded:
        """Encode an image ahead of its request. Thread-safe; does nothing if the backend does not implement it."""
        implemented = self._manager.hook.encode.get_hookimpls()
        return self._call("encode", Encoded, item=item) if implemented else Encoded()

    def stats(self) -> Stats:
        """Return counters."""
        return self._call("stats", Stats)

    def close(self) -> Closed:
        """Close the session."""
        return self._call("close", Closed)

    def check_adapters(self, asked: Sequence[Adapter]) -> None:
        """Check that the session serves the requested adapters; older backends ignore them. Raises Unsupported."""
        missing = {adapter.name for adapter in asked} - set(self.capabilities().adapters)
        if missing:
            raise Unsupported(f"--lora-adapters: does not serve adapters ({min(missing)}); leave it out, or use another backend")

    def check_cache_dtype(self, asked: str) -> None:
        """Check that the KV cache has the requested dtype. Raises Unsupported."""
        found = self.capabilities().cache_dtype
        if found != asked:
            kept = "in the dtype of the model" if found == "auto" else f"in {found}"
            raise Unsupported(f"--kv-cache-dtype: keeps its cache {kept}, not in {asked}; leave it out, or use another backend")

    def check_quantize(self, asked: str) -> None:
        """Check that weights are rounded as requested. Raises Unsupported."""
        if self.capabilities().quantize != asked:
            raise Unsupported("--quantize: does not quantize weights at load; leave it out, or use another backend")

    def _check_known(self, batch: Sequence[Request]) -> None:
        """Raises Unsupported for sampling fields that a plugin of an older contract would ignore."""
        for request in batch:
            for field in needed_fields(request.sampling) & self._newer:
                raise Unsupported(f"request {request.id} needs sampling by {field.value}", request_ids=(request.id,))

    def _check_complete(self) -> None:
        missing = [hook for hook in HOOKS if not getattr(self._manager.hook, hook).get_hookimpls()]
        if missing:
            raise BackendBug(f"backend {self.name}: its session implements no {', '.join(missing)}")

    def _call(self, hook: str, kind: type[T], **arguments: Any) -> T:
        try:
            result = getattr(self._manager.hook, hook)(**arguments)
        except BackendError:
            raise
        except Exception as error:
            raise BackendBug(f"backend {self.name}: {hook} raised {type(error).__name__}: {error}") from error
        if not isinstance(result, kind):
            raise BackendBug(f"backend {self.name}: {hook} returned {type(result).__name__}, not {kind.__name__}")
        return result
