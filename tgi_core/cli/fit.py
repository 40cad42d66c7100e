"""Whether a model fits: the plan of its backend, and plans with other settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tgi_core.backend import API_VERSION, BackendError, CacheKind, Capabilities, Capacity, OutOfMemory, WarmupPlan
from tgi_core.backend.probe import probe_all
from tgi_core.backend.registry import Plugin
from tgi_core.backend.session import Session
from tgi_core.blocks import CacheBlocks
from tgi_core.cli.memory_plan import lines, mebibytes
from tgi_core.cli.open_options import open_options
from tgi_core.cli.shard_openers import choose_backend, warmup_plan
from tgi_core.cli.weights import fetch_model_headers
from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.model_files import DEMO, quantization_settings, read_optional_json
from tgi_core.model_sizes import read_sizes
from tgi_core.telemetry.progress import progress
from tgi_core.wire.types import ShardInfo

_UNLIMITED = 1 << 60
_SHORTEST = 1024
"""The shortest context of which it is told how many fit."""
_RESERVE = "reserve"


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan. Where nothing fits, `reason` says why, and `capacity` is what one request of the greatest length would take."""

    info: ShardInfo
    capacity: Capacity
    reason: str = ""

    @property
    def needed_bytes(self) -> int:
        """Bytes of everything but what would be left."""
        return sum(item.num_bytes for item in self.capacity.memory if item.name != _RESERVE)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return sum(item.num_bytes for item in self.capacity.memory if item.name.startswith("weights"))

    @property
    def is_float32(self) -> bool:
        """Whether the model would run in float32."""
        return any(item.name == "weights (float32)" for item in self.capacity.memory)

    @property
    def bytes_per_token(self) -> float:
        """Of the KV cache."""
        groups = [group for group in self.capacity.groups if group.kind is not CacheKind.STATE]
        tokens = max((group.num_blocks * group.block_size for group in groups), default=0)
        return sum(item.num_bytes for item in self.capacity.memory if item.name == "kv cache") / max(1, tokens)

    def holds(self) -> list[tuple[int, int]]:
        """Lengths in tokens, and how many requests of each the batch and the cache hold."""
        lengths, most = [], self.capacity.max_row_tokens
        length = _SHORTEST
        while length < most:
            lengths.append(length)
            length *= 4
        groups, blocks = self.capacity.groups, CacheBlocks(self.capacity.groups, 1 + self.capacity.draft)

        def rows(tokens: int) -> int:
            counts = blocks.missing_at_once(tuple([] for _ in groups), tokens)
            return min(self.capacity.max_rows, *(group.num_blocks // count for group, count in zip(groups, counts, strict=True)))

        return [(each, rows(each)) for each in (*lengths, most)]


@dataclass(frozen=True, slots=True)
class Alternative:
    """Other settings, as flags, and what comes of them."""

    flags: str
    fits: bool
    weight_bytes: int
    needed_bytes: int
    requests: int
    """Of the greatest length, at a time."""


@dataclass(frozen=True, slots=True)
class Report:
    """What `tgi check` says."""

    model: str
    devices: tuple[str, ...]
    planned: Planned
    alternatives: tuple[Alternative, ...]

    @property
    def reason(self) -> str:
        """Why the model does not fit; empty if it does."""
        helpful = [each.flags for each in self.alternatives if each.fits]
        hint = f"; it would fit with {' or with '.join(helpful)}" if helpful else ""
        return self.planned.reason and f"{self.model} does not fit: {self.planned.reason}{hint}"

    def document(self) -> dict[str, Any]:
        """For JSON."""
        planned = self.planned
        return {
            "model": self.model,
            "fits": not planned.reason,
            "reason": self.reason,
            "backend": planned.info.backend,
            "devices": list(self.devices),
            "memory": [asdict(item) for item in planned.capacity.memory],
            "needed_bytes": planned.needed_bytes,
            "kv_bytes_per_token": planned.bytes_per_token,
            "groups": [{**asdict(group), "kind": group.kind.value} for group in planned.capacity.groups],
            "max_rows": planned.capacity.max_rows,
            "max_row_tokens": planned.capacity.max_row_tokens,
            "max_step_tokens": planned.capacity.max_step_tokens,
            "holds": [{"tokens": tokens, "requests": rows} for tokens, rows in planned.holds()],
            "kernels": [asdict(kernel) for kernel in planned.info.capabilities.kernels],
            "alternatives": [asdict(each) for each in self.alternatives],
        }


def examine(settings: Settings, memory: int | None, alternatives: bool) -> Report:
    """Plan a model, and try other settings if it does not fit or if asked to. `memory` is that of a device in bytes. Raises
    StartupError."""
    _check_ranks(settings)
    with progress() as show:
        directory = fetch_model_headers(settings.model_id or str(DEMO), settings, show)
    read_sizes(directory)
    settings = replace(settings, rope_scaling=None, rope_factor=None)  # the directory has them
    plugin = choose_backend(settings.backend)
    free = None if memory is None else int(memory * settings.memory_fraction * settings.cuda_memory_fraction)
    planned = plan(plugin, directory, settings, free)
    tried = tuple(_alternatives(plugin, directory, settings, free, planned)) if alternatives or planned.reason else ()
    [(_, probe)] = probe_all([plugin])
    return Report(settings.model_id or str(DEMO), probe.devices, planned, tried)


def _check_ranks(settings: Settings) -> None:
    if settings.sharded or (settings.num_shard or 1) > 1:
        raise StartupError("a model that is divided among several ranks cannot be planned yet; leave --num-shard out")
    if settings.draft_model is not None or settings.lora_adapters is not None:
        raise StartupError("adapters and speculators cannot be planned yet; leave --lora-adapters and --draft-model out")


def plan(plugin: Plugin, directory: Path, settings: Settings, free_bytes: int | None) -> Planned:
    """The plan of a model on a backend. Raises StartupError if it could not be opened at all."""

    def warmed(free_bytes: int | None, least: bool) -> tuple[Capabilities, Capacity]:
        options = open_options(directory, settings)
        session = Session(plugin.plan(options, lambda *_: None, free_bytes), plugin.name, built=plugin.built)
        session.check_cache_dtype(options.cache_dtype)
        session.check_quantize(options.quantize)
        found.append(session.capabilities())
        wanted = warmup_plan(settings)(found[-1])
        return found[-1], session.warmup(_one_request(wanted, found[-1]) if least else wanted, lambda *_: None)

    found: list[Capabilities] = []
    reason = ""
    try:
        try:
            capabilities, capacity = warmed(free_bytes, least=False)
        except OutOfMemory as error:
            if not found:
                raise
            reason = str(error)
            capabilities, capacity = warmed(_UNLIMITED, least=True)
            capacity = replace(capacity, memory=tuple(item for item in capacity.memory if item.name != _RESERVE))
    except BackendError as error:
        raise StartupError(f"backend {plugin.name}: {error}") from error
    info = ShardInfo(directory.name, plugin.name, plugin.device_kind, settings.dtype, API_VERSION, capabilities)
    return Planned(info, capacity, reason)


def _one_request(wanted: WarmupPlan, capabilities: Capabilities) -> WarmupPlan:
    """Limits with a cache of one request of the greatest length."""
    longest = min(wanted.max_row_tokens or capabilities.max_positions, capabilities.max_positions)
    block_size = next(iter(capabilities.block_sizes), capabilities.max_positions)
    return replace(wanted, num_blocks=-(-longest // block_size), block_size=block_size)


def _alternatives(
    plugin: Plugin, directory: Path, settings: Settings, free: int | None, planned: Planned
) -> Iterator[Alternative]:
    """Plans with fewer bytes per weight or per token of the cache, smallest changes first."""
    for changes in _changes(directory, settings, planned):
        try:
            other = plan(plugin, directory, replace(settings, **changes), free)
        except StartupError:
            continue  # this backend has no such thing
        smaller = other.weight_bytes < 0.99 * planned.weight_bytes or other.bytes_per_token < 0.99 * planned.bytes_per_token
        if smaller:
            flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in changes.items())
            requests = 0 if other.reason else other.holds()[-1][1]
            yield Alternative(flags, not other.reason, other.weight_bytes, other.needed_bytes, requests)


def _changes(directory: Path, settings: Settings, planned: Planned) -> Iterator[dict[str, Any]]:
    half = {"dtype": "bfloat16"} if planned.is_float32 else {}
    if half:
        yield half
    caches = ("int8", "fp8_e4m3fn") if settings.kv_cache_dtype == "auto" else ()
    for cache in caches:
        yield {"kv_cache_dtype": cache}
    _, stored = quantization_settings(read_optional_json(directory / "config.json"), directory)
    if stored or settings.quantize is not None:
        return
    for kind in ("int8", "fp8", "int4"):
        yield half | {"quantize": kind}
    for cache in caches:
        yield half | {"quantize": "int4", "kv_cache_dtype": cache}


def sections(report: Report) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Titles and rows of what is printed."""
    planned = report.planned
    verdict = "does not fit" if planned.reason else "fits"
    rows: list[tuple[str, ...]] = [("verdict", verdict), *(("device", device) for device in report.devices)]
    rows += lines(planned.info.backend, planned.info, planned.capacity, divided=False)
    rows.append(("needed in all", mebibytes(planned.needed_bytes)))
    rows.append(("KV cache per token", f"{planned.bytes_per_token:,.0f} bytes"))
    if not planned.reason:
        rows += [(f"requests of {tokens:,} tokens", f"{count:,} at a time") for tokens, count in planned.holds()]
    yield report.model, rows
    yield "kernels", [(kernel.part, kernel.name, kernel.reason) for kernel in planned.info.capabilities.kernels]
    if report.alternatives:
        heads = ("with", "", "weights", "needed in all", "requests of the greatest length")
        yield "alternatives", [heads, *(_row(each) for each in report.alternatives)]


def _row(each: Alternative) -> tuple[str, ...]:
    fits = "fits" if each.fits else "does not fit"
    return each.flags, fits, mebibytes(each.weight_bytes), mebibytes(each.needed_bytes), str(each.requests)
