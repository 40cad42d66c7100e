"""Speed of the Triton attention kernels on this device: decode compared to a plain copy, prefill to torch's attention.

    python bench/attention.py TILES CHIP [--decode 16,64,4,5,3] [--prefill 128,64,8,3,1]

TILES is a module with tile tables, such as tgi_backend_cuda.tiles, and CHIP one of its chips. To try another tile, give it as
queries, positions, warps, stages and programs per multiprocessor; it overrides the table's. Heads are those of Llama 3.1 8B, in
bfloat16. Requires a device that Triton supports; times are medians measured with device events.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tgi_core.engine.attention.cache import LayerShape
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepArrays
from tgi_core.engine.triton.provider import TritonAttention, TritonLayer
from tgi_core.engine.triton.tiles import Phase, Tile, TileRow, TileTable, table_of

HEADS, KV_HEADS, WIDTH, BLOCK, DTYPE = 32, 8, 128, 16, torch.bfloat16
DECODES = ((1, 500), (1, 8192), (8, 20_000), (32, 1024), (64, 2048), (256, 1024))
"""(rows, positions each)."""
PREFILLS = ((1, 8192, 0), (8, 2048, 0), (16, 512, 0), (1, 2048, 16_384))
"""(rows, tokens each, positions before them)."""


def milliseconds(run: Callable[[], object], rounds: int = 20) -> float:
    """Median device time of a run, after warm-up runs."""
    for _ in range(3):
        run()
    times = []
    for _ in range(rounds):
        start, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return median(times)


def step(device: torch.device, rows: int, take: int, past: int) -> StepArrays:
    """Equal rows whose blocks are scattered over the cache."""
    length = past + take
    blocks = -(-length // BLOCK)
    tables = (torch.randperm(rows * blocks, device=device) + 1).view(rows, blocks)
    return StepArrays(
        cu_seqlens=torch.arange(0, (rows + 1) * take, take, device=device, dtype=torch.int32),
        lengths=torch.full((rows,), length, device=device, dtype=torch.int32),
        tables=tables.int(),
        decode_rows=rows if take == 1 else 0,
        max_query=take,
        max_length=length,
    )


def attention_time(provider: TritonAttention, device: torch.device, rows: int, take: int, past: int) -> float:
    """Time of one layer's attention, in milliseconds."""
    arrays = step(device, rows, take, past)
    layer = TritonLayer(LayerShape(KV_HEADS, WIDTH, WIDTH), arrays.tables.numel(), BLOCK, DTYPE, device)
    layer.keys.normal_()
    layer.values.normal_()
    query = torch.randn(rows * take, HEADS, WIDTH, device=device, dtype=DTYPE).transpose(0, 1)
    return milliseconds(lambda: provider.attend_rows(query, layer, arrays, AttentionParameters(WIDTH**-0.5)))


def torch_time(device: torch.device, rows: int, take: int) -> float:
    """Time of torch's attention over the same tokens, dense and without a cache, in milliseconds."""
    query = torch.randn(rows, HEADS, take, WIDTH, device=device, dtype=DTYPE)
    key, value = (torch.randn(rows, KV_HEADS, take, WIDTH, device=device, dtype=DTYPE) for _ in range(2))
    return milliseconds(lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True))


def copy_bandwidth(device: torch.device) -> float:
    """Bandwidth of a 2 GB copy in GB/s, reads plus writes."""
    source = torch.zeros(2**30, device=device, dtype=DTYPE)
    target = torch.empty_like(source)
    return 2 * source.nbytes / milliseconds(lambda: target.copy_(source)) / 1e6


def tried(table: TileTable, given: dict[Phase, str | None]) -> TileTable:
    """Return the tile table, headed by the tiles given on the command line."""
    rows = []
    for phase, text in given.items():
        if text:
            rows.append(TileRow(phase, 2, WIDTH, Tile(*map(int, text.split(",")))))
    return TileTable(table.chip, table.shared_bytes, (*rows, *table.rows))


def main() -> None:
    """Print one line per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tiles")
    parser.add_argument("chip")
    parser.add_argument("--decode")
    parser.add_argument("--prefill")
    parser.add_argument("--multiprocessors", type=int, default=132)
    asked = parser.parse_args()
    device = torch.accelerator.current_accelerator()
    if device is None:
        sys.exit("no accelerator found")
    table = table_of(importlib.import_module(asked.tiles).TABLES, asked.chip)
    table = tried(table, {Phase.DECODE: asked.decode, Phase.PREFILL: asked.prefill})
    provider = TritonAttention(table, asked.multiprocessors)
    copied = copy_bandwidth(device)
    print(f"copy {copied:.0f} GB/s")
    for rows, length in DECODES:
        time = attention_time(provider, device, rows, 1, length - 1)
        rate = rows * length * 2 * KV_HEADS * WIDTH * DTYPE.itemsize / time / 1e6
        print(f"decode {rows} × {length}: {time * 1e3:.1f} µs, {rate:.0f} GB/s, {rate / copied:.0%} of copy")
    for rows, take, past in PREFILLS:
        time = attention_time(provider, device, rows, take, past)
        rate = 4 * rows * HEADS * WIDTH * take * (past + (take + 1) / 2) / time / 1e9
        beside = f", torch's own {torch_time(device, rows, take) * 1e3:.1f} µs" if not past else ""
        print(f"prefill {rows} × {take} after {past}: {time * 1e3:.1f} µs, {rate:.0f} TFLOP/s{beside}")


if __name__ == "__main__":
    main()
