"""The target of a run: a backend's plugin, the model it opens, and the limits it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from pathlib import Path

from tgi_conformance.call_log import Journal, NotedCalls
from tgi_conformance.child import ImportReport
from tgi_conformance.verdict import Violation
from tgi_core.backend import API_VERSION, Adapter, BackendBug, BackendError, Capacity, MaskSource, OpenOptions, WarmupPlan
from tgi_core.backend.session import Session
from tgi_core.model_files import read_json, text_config

MAX_ROWS, MAX_ROW_TOKENS, MAX_STEP_TOKENS = 6, 64, 96
"""Limits that every device can keep and the suite can exceed."""


WIDE_ROWS = 66
"""Two more than 64: past 32-bit and 64-bit words, full warps and tiles, with an even and an odd place behind them."""
MIXED_ROW_TOKENS, LONG_ROW_TOKENS = 160, 2064
OWNED_TOKENS = 60
"""Tokens for which the owner of a prefix may go on."""


def quiet(what: str, done: int, total: int, unit: str) -> None:
    """Discard progress."""


@dataclass(frozen=True, slots=True)
class Target:
    """A backend under test. `open` is the plugin's `backend_open`; `device_kind` "none" marks a toy that runs no real model."""

    name: str
    open: Callable[[OpenOptions], object]
    model: Path
    device_kind: str = "none"
    dtype: str = "float32"
    entry: EntryPoint | None = None
    one_process: bool = False
    """All ranks of a group run in one process."""
    seen: ImportReport | None = None
    """What a child process saw of the plugin, if one has looked already."""
    built: tuple[int, int] = API_VERSION
    """The contract version that the plugin says it was written against."""
    journal: Journal = field(default_factory=Journal)
    """Records every call that the suite makes."""

    @property
    def exact(self) -> bool:
        """Whether tokens must be identical, which is required in float32 only."""
        return self.dtype == "float32"

    @property
    def vocab_size(self) -> int:
        """The vocabulary size from the model's config.json."""
        return int(text_config(read_json(self.model / "config.json")).get("vocab_size", 256))

    def session(
        self,
        masks: MaskSource | None = None,
        adapters: tuple[Adapter, ...] = (),
        *,
        speculating: bool = False,
        cache_dtype: str = "auto",
    ) -> Session:
        """Open a fresh session without warming it up. With `speculating`, the model guesses its own next tokens."""
        options = OpenOptions(str(self.model), dtype=self.dtype, masks=masks, adapters=adapters, cache_dtype=cache_dtype)
        options = replace(options, speculator=options.model) if speculating else options
        return self.opened(lambda: self.open(options))

    def opened(self, open: Callable[[], object]) -> Session:
        """Call `open` and wrap the session. Raises BackendError, Violation."""
        try:
            self.journal.calling_aside("backend_open")
            implementation = open()
        except (BackendError, Violation):
            raise
        except Exception as error:
            raise BackendBug(f"backend {self.name}: backend_open raised {type(error).__name__}: {error}") from error
        finally:
            self.journal.returned()
        return self.wrapped(implementation)

    def wrapped(self, implementation: object) -> Session:
        """Wrap a session as the core does."""
        return Session(implementation, self.name, (NotedCalls(self.journal),) if self.journal else (), built=self.built)

    def warm(self, session: Session, plan: WarmupPlan | None = None) -> Capacity:
        """Warm a session up with the suite's small limits, or with `plan`."""
        return session.warmup(plan or small_plan(session.capabilities().block_sizes), quiet)

    def on(self, model: Path, dtype: str | None = None) -> Target:
        """Return the same backend on another model."""
        return replace(self, model=model, dtype=dtype or self.dtype)


def small_plan(block_sizes: tuple[int, ...]) -> WarmupPlan:
    """Return a small plan: rows of several blocks where the device allows it, and enough blocks for every row."""
    return plan_of(block_sizes, MAX_ROWS, MAX_ROW_TOKENS, MAX_STEP_TOKENS)


def wide_plan(block_sizes: tuple[int, ...]) -> WarmupPlan:
    """Return a plan for many short rows."""
    return plan_of(block_sizes, WIDE_ROWS, MAX_ROW_TOKENS, 512)


def mixed_plan(block_sizes: tuple[int, ...]) -> WarmupPlan:
    """Return a plan for many rows of every kind, some with long prompts; a row may own a prefix of a block and go on for long."""
    size = small_plan(block_sizes).block_size or 0
    return plan_of(block_sizes, WIDE_ROWS, max(MIXED_ROW_TOKENS, size + OWNED_TOKENS + 4), 512)


def prefix_plan(block_sizes: tuple[int, ...]) -> WarmupPlan | None:
    """Return a plan for rows behind two whole blocks; None if rows of the small plan are long enough."""
    size = small_plan(block_sizes).block_size
    length = 0 if size is None else 2 * size + 12
    return plan_of((size,), MAX_ROWS, length, length) if size is not None and length > MAX_ROW_TOKENS else None


def plan_of(block_sizes: tuple[int, ...], rows: int, row_tokens: int, step_tokens: int) -> WarmupPlan:
    """Return such a plan with other limits."""
    several = [size for size in block_sizes if 4 <= size <= MAX_ROW_TOKENS // 2]
    if not block_sizes:  # a block holds a whole row
        return WarmupPlan(rows, row_tokens, step_tokens, num_blocks=rows)
    size = min(several) if several else min(block_sizes, key=lambda size: (size < row_tokens, size))
    blocks = rows * -(-row_tokens // size)
    return WarmupPlan(rows, row_tokens, step_tokens, num_blocks=blocks, block_size=size, window_blocks=blocks)


def close(session: Session) -> None:
    """Close a session and ignore its errors: clauses about closing test for those."""
    try:
        session.close()
    except BackendError:
        return
