"""A backend that computes nothing: every row repeats the same text, and a step takes a configured time.

All CPU time of a server with this backend is serving overhead. `--backend null` finds it in processes whose environment comes from
`installed`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from tgi_core.backend import (
    API_VERSION,
    CacheGroup,
    CacheKind,
    Capabilities,
    Capacity,
    Cleared,
    Closed,
    Determinism,
    Feature,
    Grant,
    Handle,
    Manifest,
    Mixing,
    OpenOptions,
    Probe,
    ProbeStatus,
    Request,
    Row,
    Rows,
    SamplingField,
    Stats,
    Step,
    WarmupPlan,
    hookimpl,
)
from tgi_core.model_files import read_json
from tgi_core.tokenizer import Tokenizer

_ROOT = Path(__file__).resolve().parents[2]
_STEP_MS = "TGI_NULL_STEP_MS"
_BLOCK, _BLOCKS = 16, 1 << 16


@contextmanager
def installed(step_ms: float) -> Generator[dict[str, str], None, None]:
    """Environment for processes that use the backend, with steps of the given duration."""
    with TemporaryDirectory(prefix="tgi-null-") as folder:
        info = Path(folder) / "tgi_null-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tgi-null\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[tgi.backends]\nnull = bench.front.null_backend\n")
        yield {"PYTHONPATH": os.pathsep.join([folder, str(_ROOT)]), _STEP_MS: str(step_ms)}


@hookimpl
def backend_manifest() -> Manifest:
    """Manifest of a backend that is selected only by name."""
    return Manifest("null", "tgi-core", "1", API_VERSION, API_VERSION, device_kind="none")


@hookimpl
def backend_probe() -> Probe:
    """Always READY."""
    return Probe(ProbeStatus.READY, devices=("nothing",), reason="for benchmarks")


@hookimpl
def backend_open(options: OpenOptions) -> NullSession:
    """Read the vocabulary size, and encode the text that all rows repeat."""
    directory = Path(options.model)
    text = (_ROOT / "README.md").read_text()
    return NullSession(
        int(read_json(directory / "config.json")["vocab_size"]),
        Tokenizer.load(directory).encode(text, add_special_tokens=False).ids,
        float(os.environ.get(_STEP_MS, "0")) / 1e3,
    )


class NullSession:
    """Rows are counters. Arguments are not validated."""

    def __init__(self, vocab_size: int, text: tuple[int, ...], step_s: float) -> None:
        self._vocab_size, self._text, self._step_s = vocab_size, text, step_s
        self._batches: dict[Handle, dict[int, int]] = {}
        """Number of tokens generated, by batch and row."""
        self._left: dict[int, int] = {}
        """Number of prompt tokens that no step has taken yet, by row."""
        self._made: dict[int, tuple[Row, ...]] = {}
        self._handles, self._steps = count(1), count(1)
        self._free_at = 0.0
        self._due: dict[int, float] = {}

    @hookimpl
    def capabilities(self) -> Capabilities:
        """The features that let the scheduler use all of its optimizations."""
        return Capabilities(
            features=frozenset({Feature.CHUNKED_PREFILL, Feature.LOGPROBS, Feature.PREFIX_REUSE}),
            sampling=frozenset({SamplingField.SEED}),
            block_sizes=(_BLOCK,),
            mixing=Mixing.EAGER,
            determinism=Determinism.NONE,
            vocab_size=self._vocab_size,
            max_positions=2048,
        )

    @hookimpl
    def warmup(self, plan: WarmupPlan) -> Capacity:
        """Accept any number of rows."""
        rows = plan.max_rows or 1024
        return Capacity(
            groups=(CacheGroup(CacheKind.FULL, _BLOCK, _BLOCKS),),
            max_rows=rows,
            max_row_tokens=2048,
            max_step_tokens=plan.max_step_tokens or 8192,
            max_prefill_rows=rows,
            in_flight=2,
        )

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Start rows, some with only part of their prompts."""
        self._left.update({item.id: len(item.tokens) - item.cached - item.take for item in batch})
        return self._start([cached] if cached in self._batches else [], grants, {item.id: 0 for item in batch})

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Generate a token for every row."""
        return self._start(batches, grants, {})

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Wait until the step's time has passed and return its rows."""
        wait = self._due.pop(step.id) - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        return Rows(step.id, self._made.pop(step.id))

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Keep some rows."""
        rows = self._batches.pop(batch)
        handle = Handle(next(self._handles))
        kept = set(keep)
        self._batches[handle] = {id: made for id, made in rows.items() if id in kept}
        return handle

    @hookimpl
    def clear(self, batch: Handle | None) -> Cleared:
        """Drop rows."""
        gone = [batch] if batch is not None else list(self._batches)
        return Cleared(sum(len(self._batches.pop(handle)) for handle in gone))

    @hookimpl
    def stats(self) -> Stats:
        """No counters."""
        return Stats()

    @hookimpl
    def close(self) -> Closed:
        """Nothing to release."""
        return Closed()

    def _start(self, old: list[Handle] | tuple[Handle, ...], grants: tuple[Grant, ...], new: dict[int, int]) -> Step:
        silent, rows = set(), dict[int, int]()
        for grant in grants:
            if grant.request_id in self._left:
                self._left[grant.request_id] -= grant.take
            elif grant.take == 0:
                silent.add(grant.request_id)
        for handle in old:
            rows |= self._batches.pop(handle)
        rows |= new
        if self._left:
            silent |= {id for id, left in self._left.items() if left}
            self._left = {id: left for id, left in self._left.items() if left and id in rows}
        text, made = self._text, []
        for id, done in rows.items():
            if id not in silent:
                made.append(Row(id, (text[done % len(text)],), (-0.7340606451034546,)))
                rows[id] = done + 1
        step = Step(next(self._steps), Handle(next(self._handles)))
        self._batches[step.handle], self._made[step.id] = rows, tuple(made)
        self._free_at = max(self._free_at, time.monotonic()) + self._step_s
        self._due[step.id] = self._free_at
        return step
