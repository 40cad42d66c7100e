"""What must hold before any figure counts: the device's limits, every kernel's self-check, offsets beyond 2³¹ elements."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import tgi_conformance
import torch

from bench.gpu_parts.kernels import HEADS, SHAPE, copy_bandwidth
from bench.gpu_parts.place import Figures, Place, release_cached, seconds
from tgi_core.backend import Request
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.ahead.sampler_check import sampler_disagreement
from tgi_core.engine.attention.cache import LayerShape
from tgi_core.engine.attention.checking import LONG_ROWS, Case, disagreement
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import build
from tgi_core.engine.attention.provider import AttentionLayer, AttentionProvider
from tgi_core.engine.decoder.table import DecoderTable, read_table
from tgi_core.engine.selection import attempt

WIDTHS = (64, 80, 96, 112, 128, 192, 256)
GROUPS = (1, 3, 4, 8, 16)
"""Query heads per head of the cache."""

_KV_HEADS = 2
_FAR = 2**31 + 2**20
"""Elements in each half of a layer's cache whose last blocks are read."""


def ceilings(place: Place) -> Figures:
    """Bandwidths and the rate of a large bfloat16 GEMM on random data."""
    device, size = place.kit().device, 512 if place.small else 8192
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    host = torch.empty(2**20 if place.small else 2**28, dtype=torch.uint8)
    host = host.pin_memory() if device.type == "cuda" else host
    held = torch.empty_like(host, device=device)
    return {
        "copy, TB/s read and written": copy_bandwidth(device, 2**20 if place.small else 2**31) / 1e12,
        f"bfloat16 GEMM of {size}, TFLOP/s": 2 * size**3 / seconds(device, lambda: left @ right) / 1e12,
        "host to device, GB/s": host.numel() / seconds(device, lambda: held.copy_(host)) / 1e9,
        "device to host, GB/s": host.numel() / seconds(device, lambda: host.copy_(held)) / 1e9,
    }


def all_kernels(place: Place) -> Figures:
    """Every attention provider over widths, groups, dtypes, forms and 8-bit caches, and the sampler: how many agree, which differ.

    Several processes share the cases, because compiling takes most of the time.
    """
    kit, found = place.kit(), Figures()
    processes = 1 if place.small else min(14, os.cpu_count() or 1)
    for provider in kit.attention():
        if reason := provider.probe():
            found[provider.name] = f"not here: {reason}"
            continue
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            parts = [pool.submit(_checked, place, provider.name, part, 4 * processes) for part in range(4 * processes)]
            results = [part.result() for part in parts]
        differ = [text for _, texts in results for text in texts]
        found[f"{provider.name}, cases that agree"] = sum(agreed for agreed, _ in results)
        found |= {f"{provider.name}, differs {number}": text for number, text in enumerate(differ[:12], 1)}
    queue = kit.queue()
    if queue is not None:
        sampler = queue.sampler()
        found[f"sampler {sampler.name}"] = attempt(lambda: sampler_disagreement(sampler, kit.device)) or "agrees with torch"
    return found


def _checked(place: Place, name: str, part: int, parts: int) -> tuple[int, list[str]]:
    """Of a provider's cases every `parts`th: how many agree, and which differ."""
    kit = place.kit()
    provider = next(each for each in kit.attention() if each.name == name)
    agreed, differ = 0, list[str]()
    for label, layer, dtype, case in list(_cases(place, provider))[part::parts]:
        if provider.refusal([layer.shape], [layer.parameters], dtype):
            continue
        reason = attempt(lambda: disagreement(provider, [layer], dtype, kit.device, case))  # noqa: B023
        agreed += not reason
        differ += [f"{label}: {reason}"] if reason else []
    return agreed, differ


def _cases(place: Place, provider: AttentionProvider) -> Iterator[tuple[str, AttentionLayer, torch.dtype, Case]]:
    size = provider.block_sizes[0]
    plain, long = Case(block_size=size), Case(LONG_ROWS, size)
    for dtype in place.dtypes():
        words = str(dtype).removeprefix("torch.")
        for width in WIDTHS[:2] if place.small else WIDTHS:
            for group in GROUPS[:2] if place.small else GROUPS:
                yield f"{words}, heads of {width}, {group} in a group", _layer(width, group), dtype, plain
        for name, layer in _forms(dtype, place.kit().device):
            yield f"{words}, {name}", layer, dtype, long
        for cache_dtype in provider.kv_cache_dtypes:
            for width in WIDTHS:
                case = Case(LONG_ROWS, size, cache_dtype)
                yield f"{words}, heads of {width}, cache in {cache_dtype}", _layer(width, 4), dtype, case


def _layer(width: int, group: int, **parameters: object) -> AttentionLayer:
    shape = LayerShape(_KV_HEADS, width, width)
    return AttentionLayer(shape, _KV_HEADS * group, AttentionParameters(width**-0.5, **parameters))  # type: ignore[arg-type]


def _forms(dtype: torch.dtype, device: torch.device) -> Sequence[tuple[str, AttentionLayer]]:
    """One layer of each form of attention."""
    sinks = torch.randn(8, device=device).to(dtype)
    unequal = AttentionLayer(LayerShape(1, 192, 128), 16, AttentionParameters(192**-0.5))
    return (
        ("long rows", _layer(128, 4)),
        ("a window", _layer(128, 4, window=100)),
        ("a softcap", _layer(128, 4, softcap=30.0)),
        ("chunks", _layer(128, 4, chunk=256)),
        ("sinks", _layer(64, 4, sinks=sinks)),
        ("keys wider than values", unequal),
    )


def far_offsets(place: Place) -> Figures:
    """Attention over the last blocks of a cache of more than 2³¹ elements, against the same over its first."""
    kit, dtype, found = place.kit(), torch.bfloat16, Figures()
    asked, size = AttentionParameters(128**-0.5), 0
    for provider in kit.attention():
        if provider.probe() or provider.refusal([SHAPE], [asked], dtype):
            continue
        size = provider.block_sizes[0]
        blocks = 64 if place.small else _FAR // (size * SHAPE.kv_heads * SHAPE.key_width)
        found[provider.name] = attempt(lambda: _far(place, provider, blocks, size)) or f"equal over {blocks} blocks"  # noqa: B023
        release_cached(kit.device)
    return found


@torch.inference_mode()
def _far(place: Place, provider: AttentionProvider, blocks: int, size: int) -> str:
    device, dtype, length = place.kit().device, torch.bfloat16, 3 * size + 5
    cache = provider.new_layer(SHAPE, blocks, size, dtype, device)
    generator = torch.Generator(device).manual_seed(0)
    key, value = (torch.randn(8, length, 128, generator=generator, device=device).to(dtype) for _ in range(2))
    outputs = []
    for take in (1, 40):
        query = torch.randn(HEADS, take, 128, generator=generator, device=device).to(dtype)
        for table in ([1, 2, 3, 4], [blocks - 3, blocks - 2, blocks - 1, blocks]):
            tokens = [0] * length
            row = RowState(Request(1, tuple(tokens), length, 0, (tuple(table),), length), tokens, 0, (table,))
            cache.write(build([RowInput(row, 0, length, yields=True)], size, device).slots, key, value)
            step = build([RowInput(row, length - take, take, yields=True)], size, device)
            outputs.append(provider.attend(query, cache, step, AttentionParameters(128**-0.5)).clone())
    equal = all(torch.equal(first, last) and not first.isnan().any() for first, last in zip(*[iter(outputs)] * 2, strict=True))
    return "" if equal else "the last blocks give other outputs than the first"


def every_kernel_once(place: Place) -> Iterator[str]:
    """Our own kernels, one case of each kind, for a memory checker that makes them slow; the name of each and what it found."""
    from tgi_core.engine.triton.operators import TritonOperators

    kit = place.kit()
    provider = next(each for each in kit.attention() if each.name == "triton")
    for dtype in place.dtypes():
        words = str(dtype).removeprefix("torch.")
        for name, layer in (("plain", _layer(128, 4)), *_forms(dtype, kit.device)):
            case = Case(block_size=provider.block_sizes[0])
            yield f"{words}, {name}: {disagreement(provider, [layer], dtype, kit.device, case) or 'agrees'}"
        table = _table()
        yield f"{words}, operators: {TritonOperators().self_check(table, dtype, kit.device) or 'agree'}"
    queue = kit.queue()
    if queue is not None:
        yield f"sampler: {sampler_disagreement(queue.sampler(), kit.device) or 'agrees'}"


def _table() -> DecoderTable:
    directory = Path(tgi_conformance.__file__).with_name("golden") / "models" / "llama"
    return read_table(json.loads((directory / "config.json").read_text()))
