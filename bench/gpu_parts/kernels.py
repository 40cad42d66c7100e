"""Attention kernels alone: correctness against float32, and speed relative to the device's limits."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.gpu_parts.place import Figures, Place, seconds
from tgi_core.backend import Request
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.attention.cache import LayerShape
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepMetadata, build
from tgi_core.engine.attention.provider import AttentionLayer, AttentionProvider
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.device_queue import CannotCapture

HEADS, SHAPE = 32, LayerShape(8, 128, 128)
"""Heads of Llama-3.1-8B."""


def check(place: Place) -> Figures:
    """Self-check of each provider by dtype: passed, or why not."""
    kit, asked = place.kit(), AttentionParameters(128**-0.5)
    found: Figures = {}
    for provider in kit.attention():
        for dtype in place.dtypes():
            reason = provider.probe() or provider.refusal([SHAPE], [asked], dtype)
            reason = reason or provider.self_check([AttentionLayer(SHAPE, HEADS, asked)], dtype, kit.device)
            found[f"{provider.name}, {str(dtype).removeprefix('torch.')}"] = reason or "agrees with float32"
    return found


def speed(place: Place) -> Figures:
    """Speed relative to measured bandwidth and to torch's fastest dense attention, for the provider that bfloat16 models use."""
    kit, dtype, asked = place.kit(), torch.bfloat16, AttentionParameters(128**-0.5)
    provider = next(each for each in kit.attention() if not (each.probe() or each.refusal([SHAPE], [asked], dtype)))
    rows, length = (4, 128) if place.small else (64, 2048)
    copied = copy_bandwidth(kit.device, 2**20 if place.small else 2**31)
    run, read = _attention(kit, provider, rows, length, 1, dtype, asked)
    decode = _per_call(kit, run)
    prompts = 1 if place.small else 4
    run, _ = _attention(kit, provider, prompts, length, length, dtype, asked)
    prefill, dense = _per_call(kit, run), _dense(kit, prompts, length, dtype)
    operations = 2 * 2 * HEADS * 128 * length * length / 2 * prompts
    return {
        "provider": provider.name,
        "copy, TB/s read and written": copied / 1e12,
        f"decode, {rows} rows × {length}, µs": decode * 1e6,
        "decode, share of copy bandwidth": read / decode / copied,
        f"prefill, {prompts} rows × {length}, µs": prefill * 1e6,
        "prefill, TFLOP/s": operations / prefill / 1e12,
        "prefill, share of torch's dense attention": dense / prefill,
    }


def _per_call(kit: DeviceKit, run: Callable[[], Tensor], calls: int = 10) -> float:
    """Seconds per call in a sequence of calls, replayed from a graph where supported to exclude launch overhead."""
    queue = kit.queue()
    work: Callable[[], object] = run
    if queue is not None and not isinstance(graphs := queue.graphs(), str):
        try:
            work = graphs.capture(lambda: (run(), None)[1]).replay
        except CannotCapture:
            work = run
    return seconds(kit.device, lambda: [work() for _ in range(calls)]) / calls


def copy_bandwidth(device: torch.device, num_bytes: int) -> float:
    """Bandwidth of a copy on the device in bytes per second, reads plus writes."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / seconds(device, lambda: target.copy_(source))


def _attention(
    kit: DeviceKit,
    provider: AttentionProvider,
    rows: int,
    length: int,
    take: int,
    dtype: torch.dtype,
    asked: AttentionParameters,
) -> tuple[Callable[[], Tensor], int]:
    """A call over rows of `length` positions that computes the last `take`, and the number of cache bytes that it reads."""
    size = provider.block_sizes[0]
    count = -(-length // size)
    row_inputs = []
    for row in range(rows):
        blocks = [1 + row * count + i for i in range(count)]
        tokens = [0] * length
        live = RowState(Request(row + 1, tuple(tokens), length, length - take, (tuple(blocks),), take), tokens, 0, (blocks,))
        row_inputs.append(RowInput(live, length - take, take, yields=True))
    step: StepMetadata = build(row_inputs, size, kit.device)
    cache = provider.new_layer(SHAPE, rows * count, size, dtype, kit.device)
    slots = torch.arange(size, (rows * count + 1) * size, device=kit.device)
    cache.write(slots, *(torch.randn(8, len(slots), 128, device=kit.device, dtype=dtype) for _ in range(2)))
    query = torch.randn(HEADS, rows * take, 128, device=kit.device, dtype=dtype)

    def run() -> Tensor:
        with torch.inference_mode():
            return provider.attend(query, cache, step, asked)

    return run, rows * length * SHAPE.elements() * dtype.itemsize


def _dense(kit: DeviceKit, rows: int, length: int, dtype: torch.dtype) -> float:
    """Seconds of torch's causal attention over dense tensors, using cuDNN if available."""
    query, key, value = (torch.randn(rows, heads, length, 128, device=kit.device, dtype=dtype) for heads in (HEADS, 8, 8))
    times = []
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        try:
            with sdpa_kernel([backend]), torch.inference_mode():
                times.append(
                    seconds(
                        kit.device, lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
                    )
                )
        except RuntimeError:  # not supported on this device
            continue
    return min(times)
