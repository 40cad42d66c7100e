"""The tensors of quantized layers in files, by method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tgi_core import __version__
from tgi_core.engine.quantizing.awq import Stored, scale_inputs
from tgi_core.engine.quantizing.gptq import gptq_fields
from tgi_core.engine.quantizing.layerwise import SeenLayer
from tgi_core.engine.quantizing.quantizer import Quantizer, asymmetric_quantizer, symmetric_quantizer
from tgi_core.errors import StartupError

Tensors = dict[str, Tensor]


class QuantizationScheme(ABC):
    """Quantizes matrices, and describes them for config.json."""

    calibrated = False
    """Whether it needs the second moments of a layer's inputs."""

    @abstractmethod
    def settings(self, left: Sequence[str]) -> dict[str, Any]:
        """The config's `quantization_config`. `left` are the names of linear layers that are not quantized."""

    @abstractmethod
    def refusal(self, rows: int, columns: int) -> str:
        """Why a matrix of this size stays as it is; empty if it is quantized."""

    def prepare(self, seen: SeenLayer, stored: Stored) -> None:
        """Reduce the loss of a decoder layer's matrices, without changing what the layer computes. `stored` is called for other tensors
        that change."""
        return

    @abstractmethod
    def quantize(self, matrix: Tensor, moments: Tensor | None) -> tuple[Tensors, Tensor]:
        """Tensors that replace a matrix [out, in] in float32, by their names after the layer's, and the matrix that they stand for."""


class Grouped(QuantizationScheme):
    """Integers of `bits` bits with a scale per output and group of inputs."""

    def __init__(self, bits: int, size: int) -> None:
        """`size` is -1 for one group. Raises StartupError."""
        if size != -1 and size < 1:
            raise StartupError(f"--group-size {size}: give a positive number, or -1 for one group")
        self._bits, self._size = bits, size

    def refusal(self, rows: int, columns: int) -> str:
        """See `QuantizationScheme.refusal`."""
        if columns % 32 or columns % self._group(columns):
            return f"its {columns} inputs are not whole groups of {self._size if self._size > 0 else 32}"
        return f"its {rows} outputs are not a multiple of 32" if rows % 32 else ""

    def _group(self, columns: int) -> int:
        return self._size if self._size > 0 else columns


class Gptq(Grouped):
    """In GPTQ's files (version 1): by GPTQ itself, or rounded to nearest."""

    def __init__(self, bits: int, size: int, *, calibrated: bool, damping: float = 0.01, ordered: bool = False) -> None:
        """See `Grouped`."""
        if bits not in (2, 3, 4, 8):
            raise StartupError(f"--bits {bits}: gptq and rtn make 2, 3, 4 or 8 bits")
        super().__init__(bits, size)
        self.calibrated = calibrated
        self._damping, self._ordered = damping, ordered

    def settings(self, left: Sequence[str]) -> dict[str, Any]:
        """See `QuantizationScheme.settings`."""
        return {
            "quant_method": "gptq",
            "bits": self._bits,
            "group_size": self._size,
            "desc_act": False,  # groups stay those of adjacent inputs, whatever the order of rounding
            "sym": True,
            "lm_head": False,
            "checkpoint_format": "gptq",
            "damp_percent": self._damping,
            "static_groups": self._ordered,
            "true_sequential": False,
            "meta": {"quantizer": [f"tgi-core:{__version__}"], "method": "gptq" if self.calibrated else "round to nearest"},
        }

    def quantize(self, matrix: Tensor, moments: Tensor | None) -> tuple[Tensors, Tensor]:
        """See `QuantizationScheme.quantize`."""
        size = self._group(matrix.shape[1])
        if moments is None:
            quantizer = symmetric_quantizer(matrix, self._bits, size)
            fields = quantizer.fields(matrix)
        else:
            fields, quantizer = gptq_fields(matrix, moments, self._bits, size, self._damping, self._ordered)
        return self._packed(fields, quantizer), quantizer.matrix(fields)

    def _packed(self, fields: Tensor, quantizer: Quantizer) -> Tensors:
        stored = (quantizer.zeros.to(torch.int16) - 1).to(torch.uint8)
        return {
            "qweight": pack_int32(fields.T, self._bits, 0),
            "qzeros": pack_int32(stored.T, self._bits, 1),
            "scales": quantizer.scales.T.half().contiguous(),
            "g_idx": (torch.arange(fields.shape[1]) // quantizer.size).int(),
        }


class Awq(Grouped):
    """In AutoAWQ's files (GEMM layout), rounded to nearest after AWQ has scaled the inputs."""

    calibrated = True

    def __init__(self, bits: int, size: int) -> None:
        """See `Grouped`."""
        if bits != 4:
            raise StartupError(f"--bits {bits}: awq makes 4 bits")
        super().__init__(bits, size)

    def settings(self, left: Sequence[str]) -> dict[str, Any]:
        """See `QuantizationScheme.settings`."""
        return {
            "quant_method": "awq",
            "bits": self._bits,
            "group_size": self._size,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": list(left) or None,
        }

    def prepare(self, seen: SeenLayer, stored: Stored) -> None:
        """See `QuantizationScheme.prepare`."""
        scale_inputs(seen, self._rounded, stored)

    def quantize(self, matrix: Tensor, moments: Tensor | None) -> tuple[Tensors, Tensor]:
        """See `QuantizationScheme.quantize`."""
        quantizer = asymmetric_quantizer(matrix, self._bits, self._group(matrix.shape[1]))
        fields = quantizer.fields(matrix)
        parts = {
            "qweight": _awq_words(fields),
            "qzeros": _awq_words(quantizer.zeros.to(torch.uint8)),
            "scales": quantizer.scales.T.half().contiguous(),
        }
        return parts, quantizer.matrix(fields)

    def _rounded(self, matrix: Tensor) -> Tensor:
        quantizer = asymmetric_quantizer(matrix, self._bits, self._group(matrix.shape[1]))
        return quantizer.matrix(quantizer.fields(matrix))


def _awq_words(fields: Tensor) -> Tensor:
    """Words int32 [n, out / 8] of fields uint8 [out, n]. Field i of a word is output (0, 2, 4, 6, 1, 3, 5, 7)[i] of its eight."""
    return pack_int32(fields.T.unflatten(1, (-1, 8))[..., [0, 2, 4, 6, 1, 3, 5, 7]].flatten(1), 4, 1)


class Channels(QuantizationScheme):
    """8 bits per weight with a scale per output, in compressed-tensors' files: integers, or 8-bit floats."""

    def __init__(self, kind: str) -> None:
        """`kind` is int8 or fp8."""
        self._float = kind == "fp8"

    def settings(self, left: Sequence[str]) -> dict[str, Any]:
        """See `QuantizationScheme.settings`. 8-bit floats ask servers to round inputs too, as GPUs multiply them; this server does not."""
        kind = "float" if self._float else "int"
        common = {"num_bits": 8, "type": kind, "symmetric": True, "group_size": None}
        inputs = {**common, "strategy": "token", "dynamic": True} if self._float else None
        group = {
            "targets": ["Linear"],
            "weights": {**common, "strategy": "channel", "dynamic": False},
            "input_activations": inputs,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": "float-quantized" if self._float else "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": group | {"output_activations": None}},
            "ignore": ["lm_head", *left],
        }

    def refusal(self, rows: int, columns: int) -> str:
        """See `QuantizationScheme.refusal`."""
        return f"its {columns} inputs are not a multiple of 4" if columns % 4 else ""

    def quantize(self, matrix: Tensor, moments: Tensor | None) -> tuple[Tensors, Tensor]:
        """See `QuantizationScheme.quantize`."""
        top = 448.0 if self._float else 127.0
        scale = (matrix.abs().amax(1, keepdim=True) / top).clamp_min(torch.finfo(torch.float32).tiny)
        if self._float:
            codes = (matrix / scale).to(torch.float8_e4m3fn)
            return {"weight": codes, "weight_scale": scale}, codes.float() * scale
        integers = (matrix / scale).round()
        packed = pack_int32((integers + 128).to(torch.uint8), 8, 1)
        return {"weight_packed": packed, "weight_scale": scale, "weight_shape": torch.tensor(matrix.shape)}, integers * scale


def pack_int32(fields: Tensor, bits: int, dim: int) -> Tensor:
    """Fields of `bits` bits, lowest first, as a stream in int32 words along a dimension."""
    rows = fields.movedim(dim, -1).contiguous().numpy()
    stream = np.unpackbits(rows[..., np.newaxis], axis=-1, count=bits, bitorder="little").reshape(*rows.shape[:-1], -1)
    packed = np.packbits(stream, axis=-1, bitorder="little")
    return torch.from_numpy(packed.view("<i4").copy()).movedim(-1, dim).contiguous()
