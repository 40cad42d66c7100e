"""What the native step takes to run a decoder's table: known before weights are loaded."""

from __future__ import annotations

import torch

from tgi_backend_cpu.interface import Panels
from tgi_backend_cpu.kernels import Kernels
from tgi_backend_cpu.packing.panels import panel_sizes
from tgi_core.engine.decoder.table import DecoderTable


def has_fused_rope(table: DecoderTable) -> bool:
    """Whether the GEMM of queries, keys and values rotates the heads: whole heads, in whole blocks, without a norm before RoPE."""
    return table.rotary.size == table.head_size and table.head_size % 32 == 0 and not table.query_norm


def workspace_bytes(table: DecoderTable, dtype: torch.dtype, ranks: int = 0) -> int:
    """Bytes of the workspace per token of a step whose tokens are all wanted, as those of a scored prompt are: `Workspace::make_room` in
    `native/step.h`. `ranks`: of adapters together."""
    queries = table.heads * table.head_size
    every, size = queries + 2 * table.kv_heads * table.head_size, dtype.itemsize
    floats = 2 * table.hidden + table.rotary.size + (0 if has_fused_rope(table) else every)
    if ranks:
        floats += ranks + max(every, table.hidden, 2 * table.intermediate)
    return 4 * floats + size * (every + 2 * queries + table.hidden + table.intermediate)


def padding_bytes(kernels: Kernels, table: DecoderTable, dtype: torch.dtype) -> int:
    """Bytes that dense panels of all layers and of the head take beyond their weights: the last panel of each is filled up."""
    queries, half = table.heads * table.head_size, dtype is torch.bfloat16
    every = queries + 2 * table.kv_heads * table.head_size

    def padding(columns: int, depth: int, panels: Panels = Panels.PLAIN) -> int:
        count, panel_bytes = panel_sizes(kernels, half, panels, columns, depth)
        return count * panel_bytes - columns * depth * dtype.itemsize

    layer = (
        padding(every, table.hidden, Panels.PAIRS if has_fused_rope(table) else Panels.PLAIN)
        + padding(table.hidden, queries)
        + padding(2 * table.intermediate, table.hidden, Panels.PAIRS)
        + padding(table.hidden, table.intermediate)
    )
    return len(table.layers) * layer + padding(table.vocab_size, table.hidden)
