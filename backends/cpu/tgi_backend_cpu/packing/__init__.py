"""Packing weights for the native kernels: one file per layout, best first."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tgi_backend_cpu.interface import Layout, Linear, Panels
from tgi_backend_cpu.kernels import Arena, Kernels
from tgi_backend_cpu.packing.bf12 import Bf12Panels
from tgi_backend_cpu.packing.codes import CodePanels
from tgi_backend_cpu.packing.dense import DensePanels
from tgi_backend_cpu.packing.panels import Forget, PackedLayout, Unpacked
from tgi_core.engine.quantization.weight import Weight

LAYOUTS: tuple[PackedLayout, ...] = (
    CodePanels(Layout.INT4),
    CodePanels(Layout.CODES4),
    CodePanels(Layout.INT8),
    CodePanels(Layout.CODES8),
    CodePanels(Layout.E4M3),
    CodePanels(Layout.LEVELS),
    Bf12Panels(),
    DensePanels(),
)
"""The last one supports every weight."""


def pack(
    kernels: Kernels,
    arena: Arena,
    weights: Sequence[Weight],
    bias: Tensor | None = None,
    panels: Panels = Panels.PLAIN,
    forget: Forget = lambda: None,
) -> Linear:
    """Pack weights [out, in] of one dtype, concatenated, or two whose rows form pairs.

    The bias, float32, and the arena must outlive the result. `forget` is called when the weights have been read, and more is to be
    done. A GEMM has the same bits in every layout but INT4 and INT8.
    """
    asked = Unpacked(kernels, weights, panels, forget)
    steps = -(-asked.depth // 2) if asked.dtype is torch.bfloat16 else asked.depth
    for layout in LAYOUTS:
        address = layout.pack(asked, arena)
        if address is not None:
            return Linear(address, None if bias is None else bias.data_ptr(), layout.layout, asked.columns, steps)
    raise ValueError(f"no layout for weights of {asked.dtype}")
