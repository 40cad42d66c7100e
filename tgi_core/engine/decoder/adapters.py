"""LoRA adapters of a decoder that runs from its table: the slices that each adapter adds to a layer's merged projections."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from tgi_core.engine.decoder.table import DecoderTable, projections
from tgi_core.engine.decoder.unsupported import UnsupportedFamily
from tgi_core.engine.lora.files import AdapterFile, LoraTensors
from tgi_core.engine.lora.weights import read_lora_weights

MERGED_PROJECTIONS = ("qkv", "output", "gate_up", "down")
"""A layer's GEMMs: `qkv` merges the projections of queries, keys and values, `gate_up` those of gate and up."""

_MERGED_INTO = {
    "self_attn.q_proj": "qkv",
    "self_attn.k_proj": "qkv",
    "self_attn.v_proj": "qkv",
    "self_attn.qkv_proj": "qkv",
    "self_attn.o_proj": "output",
    "mlp.gate_proj": "gate_up",
    "mlp.up_proj": "gate_up",
    "mlp.gate_up_proj": "gate_up",
    "mlp.down_proj": "down",
}

_NAME = re.compile(r"(model\.)?layers\.(?P<layer>0|[1-9]\d{0,5})\.(?P<projection>\w+\.\w+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class LoraSlice:
    """An adapter's matrices for one projection: lora_a [in, rank] and lora_b [rank, out], float32, added to the merged projection's output
    from column `first` on."""

    lora_a: Tensor
    lora_b: Tensor
    first: int


class TableAdapter:
    """One adapter, by layer and merged projection. Its matrices are read from the file on demand."""

    def __init__(self, file: AdapterFile, table: DecoderTable) -> None:
        """Raises UnsupportedFamily for other targets or sizes; running module by module then reports the actual error, if there is one."""
        if table.latent is not None:
            raise UnsupportedFamily("its attention is latent, and adapters change projections before or after latents")
        self.name = file.name
        self._file, self._table = file, table
        self._columns = _first_columns(table)
        self._placed: dict[int, dict[str, LoraTensors]] = {}
        shapes = projections(table)
        for module, tensors in file.modules.items():
            found = _NAME.fullmatch(module)
            projection = found["projection"] if found else ""
            if found is None or int(found["layer"]) >= len(table.layers) or projection not in shapes:
                raise UnsupportedFamily(f"adapter {file.name} targets {module}")
            if (tensors.lora_b.shape[0], tensors.lora_a.shape[1]) != shapes[projection][0]:
                raise UnsupportedFamily(f"adapter {file.name} has other sizes in {module}")
            self._placed.setdefault(int(found["layer"]), {})[projection] = tensors

    @property
    def targets(self) -> frozenset[str]:
        """The layers and projections that it targets."""
        return frozenset(f"{index}.{projection}" for index, placed in self._placed.items() for projection in placed)

    def layer(self, index: int) -> dict[str, list[LoraSlice]]:
        """A layer's slices by merged projection. Raises InvalidModel if a value is not finite."""
        placed = self._placed.get(index, {})
        slices: dict[str, list[LoraSlice]] = {name: [] for name in MERGED_PROJECTIONS}
        weights = read_lora_weights(self._file, placed.values(), torch.float32, torch.device("cpu"))
        for projection, (lora_a, lora_b) in zip(placed, weights, strict=True):
            slices[_MERGED_INTO[projection]].append(LoraSlice(lora_a, lora_b, self._columns[projection]))
        return slices


def _first_columns(table: DecoderTable) -> dict[str, int]:
    """The first column of each projection in its merged projection."""
    ends = dict.fromkeys(MERGED_PROJECTIONS, 0)
    first = {}
    for projection, ((outputs, _), _) in projections(table).items():
        first[projection] = ends[_MERGED_INTO[projection]]
        ends[_MERGED_INTO[projection]] += outputs
    return first
