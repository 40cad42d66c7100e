"""Writers of formats that are stored as GPU kernels read them: EETQ, Marlin and EXL2. Their own libraries need a GPU, so these follow their
sources loop by loop, and `test_kernel_layouts.py` holds them to places that the sources name. HQQ's is the library itself."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tests.engine.quantized_files import Tensors, Writer, words_of


def eetq(matrix: Tensor) -> tuple[Tensors, Tensor]:
    """As cutlass_preprocessors.cc, for compute capability 8.0: permute rows, transpose, interleave columns, add a bias and swap. A matrix
    that does not fit stays plain."""
    rows, columns = matrix.shape
    if columns % 64 or rows % 2:
        return {"weight": matrix}, matrix
    scale = (matrix.float().abs().amax(1) / 128).half()
    codes = (matrix.float() / scale.float().unsqueeze(1)).round().clamp(-128, 127)
    plain = codes * scale.float().unsqueeze(1)
    there = codes.to(torch.int8).T.numpy()
    permuted = np.empty_like(there)
    for base in range(0, columns, 16):
        for tile_row in range(16):
            permuted[base + tile_row] = there[base + 8 * ((tile_row % 4) // 2) + tile_row % 2 + 2 * (tile_row // 4)]
    turned = np.ascontiguousarray(permuted.T).view(np.int32)  # [out, in / 4]
    mixed = np.empty(turned.size, np.int32)
    for column in range(rows):
        for base in range(0, columns // 4, 16):
            for row in range(base, base + 16):
                mixed[(column // 2) * (columns // 4) * 2 + 2 * base + 16 * (column % 2) + row % 16] = turned[column, row]
    biased = (mixed.view(np.int8).astype(np.int16) + 128).astype(np.uint8).reshape(-1, 4)
    biased[:, [1, 2]] = biased[:, [2, 1]]
    stored = torch.from_numpy(biased.reshape(columns, rows).view(np.int8).copy())
    return {"weight": stored, "weight_scales": scale}, plain


def marlin(size: int) -> Writer:
    """As `marlin.Layer.pack`. A matrix that does not fit stays plain."""

    def write(matrix: Tensor) -> tuple[Tensors, Tensor]:
        rows, columns = matrix.shape
        group = size if size > 0 else columns
        if columns % 16 or rows % 64 or columns % group:
            return {"weight": matrix}, matrix
        scales = (matrix.float().unflatten(1, (-1, group)).abs().amax(-1) / 7.5).half().T  # [groups, out]
        wide = scales.float().repeat_interleave(group, 0)
        codes = (matrix.float().T / wide).round().add(8).clamp(0, 15)
        plain = ((codes - 8) * wide).T
        order, by_group, by_row = marlin_orders()
        tiles = codes.reshape(columns // 16, 16, rows // 16, 16).permute(0, 2, 1, 3).reshape(columns // 16, rows * 16)
        mixed = tiles.reshape(-1, len(order))[:, order].reshape(tiles.shape)
        scale_order = by_group if group < columns else by_row
        mixed_scales = scales.reshape(-1, len(scale_order))[:, scale_order].reshape(-1, rows)
        return {
            "B": words_of(mixed, 4, 1),
            "s": mixed_scales,
            "workspace": torch.zeros(max(1, rows // 128) * 16, dtype=torch.int32),
        }, plain

    return write


def marlin_orders() -> tuple[list[int], list[int], list[int]]:
    """Of codes, scales by groups, and scales by outputs."""
    order: list[int] = []
    for thread in range(32):
        rows = (2 * (thread % 4), 2 * (thread % 4) + 1, 2 * (thread % 4 + 4), 2 * (thread % 4 + 4) + 1)
        one = [16 * row + thread // 4 + 8 * block for block in (0, 1) for row in rows]
        for tile in range(4):
            order += [place + 256 * tile for place in one]
    mixed = torch.tensor(order).reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].flatten().tolist()
    by_group = [i + 8 * j for i in range(8) for j in range(8)]
    return mixed, by_group, [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]


def exl2(matrix: Tensor) -> tuple[Tensors, Tensor]:
    """As `AdaptiveGPTQ.pack`: a group of 32 inputs for each number of bits, in a random order of inputs."""
    columns = matrix.shape[1]
    order = torch.randperm(columns, generator=torch.Generator().manual_seed(2))
    sorted_ = matrix.float().T[order]
    words: list[Tensor] = []
    groups: list[int] = []
    roots: list[Tensor] = []
    most: list[Tensor] = []
    plain: list[Tensor] = []
    for index, part in enumerate(sorted_.split(32)):
        bits = (6, 4, 3, 2, 8, 5)[index % 6]
        wanted = part.abs().amax(0) / (2 ** (bits - 1))
        top = (wanted.max() / 256 * 256).half()
        root = (wanted / top.float() * 256).sqrt().ceil().clamp(1, 16)
        scale = ((root * root).half() * (top / 256)).float()
        codes = (part / scale).round().add(2 ** (bits - 1)).clamp(0, 2**bits - 1)
        groups += [bits, sum(map(len, words))]
        words.append(words_of(codes, bits, 0))
        roots.append(root - 1)
        most.append(top)
        plain.append((codes - 2 ** (bits - 1)) * scale)
    back = torch.argsort(order)
    parts = {
        "q_weight": torch.cat(words),
        "q_groups": torch.tensor(groups, dtype=torch.int16),
        "q_scale": words_of(torch.stack(roots), 4, 1),
        "q_scale_max": torch.stack(most),
        "q_invperm": back.int(),
    }
    return parts, torch.cat(plain)[back].T


def hqq(bits: int, size: int, axis: int, dtype: torch.dtype = torch.float32) -> Writer:
    """Layers as hqq itself makes them."""
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    def write(matrix: Tensor) -> tuple[Tensors, Tensor]:
        layer = torch.nn.Linear(matrix.shape[1], matrix.shape[0], bias=False)
        layer.weight.data = matrix.to(dtype)
        settings = BaseQuantizeConfig(nbits=bits, group_size=size, axis=axis)
        made = HQQLinear(layer, settings, compute_dtype=dtype, device="cpu", del_orig=False)
        parts = {name: value.detach().clone() for name, value in made.state_dict().items()}
        made.meta["compute_dtype"] = torch.float32  # its arithmetic, in float32
        made.meta |= {"scale": made.meta["scale"].float(), "zero": made.meta["zero"].float()}
        return parts, made.dequantize().detach()

    return write
