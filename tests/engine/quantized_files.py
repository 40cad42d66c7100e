"""Quantized checkpoints, and the dense ones of the numbers that they stand for.

Writers of compressed-tensors and bitsandbytes call these libraries. GPTQ's and AWQ's own need a GPU or a compiler: these are written after
their documentation, and `test_formats.py` holds them to words of their files.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]
Settings = dict[str, Any]
Writer = Callable[[Tensor], tuple[Tensors, Tensor]]
"""A matrix [out, in] → the tensors that a layer has in its place, by their names after the layer's, and the matrix that they stand for."""

LAYERS = r"(_proj|lm_head)\.weight"


def write_quantized(folder: Path, to: Path, write: Writer, settings: Settings, layers: str = LAYERS) -> tuple[Path, Path]:
    """A checkpoint whose matrices of such names are quantized, and the dense one of the same numbers."""
    packed: Tensors = {}
    plain: Tensors = {}
    for name, value in load_file(folder / "model.safetensors").items():
        packed[name] = plain[name] = value
        if value.dim() == 2 and re.search(layers, name):
            parts, matrix = write(value)
            del packed[name]
            layer = name.removesuffix(".weight")
            packed |= {f"{layer}.{part}": tensor.contiguous() for part, tensor in parts.items()}
            plain[name] = matrix.to(value.dtype).contiguous()
    config = json.loads((folder / "config.json").read_text())
    for kind, tensors, fields in (("packed", packed, {"quantization_config": settings}), ("plain", plain, {})):
        (to / kind).mkdir(parents=True)
        save_file(tensors, to / kind / "model.safetensors", metadata={"format": "pt"})
        (to / kind / "config.json").write_text(json.dumps(config | fields))
        if (folder / "generation_config.json").exists():
            shutil.copy(folder / "generation_config.json", to / kind)
    return to / "packed", to / "plain"


def words_of(fields: Tensor, bits: int, dim: int) -> Tensor:
    """Fields of `bits` bits as a stream of them along a dimension, lowest bit first, in words int32."""
    rows = fields.movedim(dim, -1).numpy().astype(np.uint8)
    stream = np.unpackbits(rows[..., np.newaxis], axis=-1, count=bits, bitorder="little").reshape(*rows.shape[:-1], -1)
    stream = np.pad(stream, [(0, 0)] * (stream.ndim - 1) + [(0, -stream.shape[-1] % 32)])
    words = np.packbits(stream, axis=-1, bitorder="little").view("<i4")
    return torch.from_numpy(words.copy()).movedim(-1, dim)


def rounded(matrix: Tensor, bits: int, size: int, symmetric: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fields [out, in], scales float16 and zero points [out, groups], and the matrix that they stand for,
    by groups of `size` columns."""
    values, top = matrix.float().unflatten(1, (-1, size)), 2**bits - 1
    if symmetric:
        scales = values.abs().amax(-1) / (2 ** (bits - 1) - 0.5)
        zeros = torch.full_like(scales, 2 ** (bits - 1))
    else:
        low, high = values.amin(-1).clamp_max(0), values.amax(-1).clamp_min(0)
        scales = (high - low) / top
        zeros = (-low / scales).round()
    scales = scales.clamp_min(1e-4).half()
    fields = (values / scales.float().unsqueeze(-1) + zeros.unsqueeze(-1)).round().clamp(0, top)
    plain = ((fields - zeros.unsqueeze(-1)) * scales.float().unsqueeze(-1)).flatten(1)
    return fields.flatten(1).to(torch.uint8), scales, zeros.to(torch.uint8), plain


def gptq(bits: int, size: int, *, symmetric: bool = True, version: int = 1, shuffled: bool = False) -> Writer:
    """Layers of GPTQ; `shuffled` spreads the inputs of each group, as act-order does."""

    def write(matrix: Tensor) -> tuple[Tensors, Tensor]:
        columns = matrix.shape[1]
        order = torch.randperm(columns, generator=torch.Generator().manual_seed(1)) if shuffled else torch.arange(columns)
        fields, scales, zeros, plain = rounded(matrix[:, order], bits, size if size > 0 else columns, symmetric)
        back = torch.argsort(order)
        stored = (zeros.int() - (2 - version)) & (2**bits - 1)
        parts = {
            "qweight": words_of(fields[:, back].T, bits, 0),
            "qzeros": words_of(stored.T, bits, 1),
            "scales": scales.T,
            "g_idx": (back // (size if size > 0 else columns)).int(),
        }
        return parts, plain[:, back]

    return write


def awq(size: int) -> Writer:
    """Layers of AWQ's GEMM layout."""

    def write(matrix: Tensor) -> tuple[Tensors, Tensor]:
        fields, scales, zeros, plain = rounded(matrix, 4, size, symmetric=False)
        order = [0, 2, 4, 6, 1, 3, 5, 7]

        def packed(values: Tensor) -> Tensor:
            return words_of(values.T.unflatten(1, (-1, 8))[..., order].flatten(1), 4, 1)

        return {"qweight": packed(fields), "qzeros": packed(zeros), "scales": scales.T}, plain

    return write


def fp8(name: str, block: tuple[int, int] | None) -> Writer:
    """8-bit floats by blocks, or by outputs."""

    def write(matrix: Tensor) -> tuple[Tensors, Tensor]:
        rows, columns = matrix.shape
        high, wide = block or (1, columns)
        padded = torch.nn.functional.pad(matrix.float(), (0, -columns % wide, 0, -rows % high))
        tiles = padded.view(padded.shape[0] // high, high, padded.shape[1] // wide, wide)
        scale = tiles.abs().amax((1, 3)).clamp_min(1e-6) / 448
        codes = (tiles / scale[:, None, :, None]).to(torch.float8_e4m3fn)
        plain = (codes.float() * scale[:, None, :, None]).view(padded.shape)[:rows, :columns]
        return {"weight": codes.view(padded.shape)[:rows, :columns], name: scale}, plain

    return write


def bitsandbytes(kind: str, *, double: bool = False) -> Writer:
    """Layers as bitsandbytes itself makes them: nf4, fp4 or int8."""
    from bitsandbytes import functional as F

    def write(matrix: Tensor) -> tuple[Tensors, Tensor]:
        if kind == "int8":
            codes, scale, _ = F.int8_vectorwise_quant(matrix.half())
            parts = {"weight": codes, "SCB": scale, "weight_format": torch.zeros((), dtype=torch.uint8)}
            return parts, codes.float() * (scale / 127).unsqueeze(1)
        codes, state = F.quantize_4bit(matrix.float(), blocksize=64, quant_type=kind, compress_statistics=double)
        parts = {f"weight.{name}": part for name, part in state.as_dict(packed=True).items()}
        flat = codes.view(-1, 1)  # by columns of a block's size: where blocks straddle rows, version 0.50.2 is wrong on a CPU
        state.shape = torch.Size((matrix.numel() // 64, 64))
        return {"weight": codes, **parts}, F.dequantize_4bit(flat, state).view(matrix.shape)

    return write


def compressed_tensors(stored: str, weights: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> tuple[Writer, Settings]:
    """Layers as compressed-tensors itself makes them, with scales in `dtype`; and the config's settings."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    compressor = BaseCompressor.get_value_from_registry(stored)

    def write(matrix: Tensor) -> tuple[Tensors, Tensor]:
        rows, columns = matrix.shape
        size = weights.get("group_size") or columns
        if weights["strategy"] == "block":
            high, wide = weights["block_structure"]
            tiles = matrix.to(dtype).view(rows // high, high, columns // wide, wide).transpose(1, 2).flatten(2)
        else:
            tiles = (
                matrix.to(dtype).unflatten(1, (-1, size)) if weights["strategy"] != "tensor" else matrix.to(dtype).view(1, 1, -1)
            )
        whole = generate_gparam(matrix.min(), matrix.max()) if weights["strategy"] == "tensor_group" else None
        scale, zero = calculate_qparams(tiles.amin(-1), tiles.amax(-1), scheme.weights, global_scale=whole)
        state = {"weight": matrix.to(dtype), "weight_scale": scale, "weight_zero_point": zero}
        if weights["strategy"] == "tensor":
            state |= {"weight_scale": scale.view(1), "weight_zero_point": zero.view(1)}
        if whole is not None:
            state["weight_global_scale"] = whole.view(1)
        parts = compressor.compress(state, scheme)
        if whole is None:
            return parts, compressor.decompress(parts, scheme)["weight"]
        codes = unpack_fp4_from_uint8(parts["weight_packed"], rows, columns, dtype=dtype)  # `decompress` rounds to bfloat16
        scales = parts["weight_scale"].to(dtype)
        return parts, dequantize(codes, scales, args=scheme.weights, global_scale=whole.view(1), dtype=dtype)

    fields = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "group_size": None}
    group = {"targets": ["Linear"], "weights": fields | dict(weights), "input_activations": None, "output_activations": None}
    settings = {"quant_method": "compressed-tensors", "format": stored, "config_groups": {"group_0": group}}
    return write, settings
