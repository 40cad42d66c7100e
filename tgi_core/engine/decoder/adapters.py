"""Adapters on a decoder that runs from its table: what each adds to the products of a layer."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from tgi_core.engine.decoder.table import DecoderTable, projections
from tgi_core.engine.decoder.unsupported import UnsupportedFamily
from tgi_core.engine.lora.files import AdapterFile, LowRank
from tgi_core.engine.lora.weights import read_products

PRODUCTS = ("qkv", "output", "gate_up", "down")
"""A layer's products; queries, keys and values are columns of one, gates and ups of another."""

_OF = {
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
class Part:
    """What is added to columns `first`… of a product: `down` [in, rank], then `up` [rank, out], both float32."""

    down: Tensor
    up: Tensor
    first: int


class TableAdapter:
    """One adapter, by layer and product. Its matrices are read as they are asked for."""

    def __init__(self, file: AdapterFile, table: DecoderTable) -> None:
        """Raises UnsupportedFamily where it changes something else, or has other sizes; the modules then say what is wrong with it."""
        self.name = file.name
        self._file, self._table = file, table
        self._columns = _first_columns(table)
        self._placed: dict[int, dict[str, LowRank]] = {}
        shapes = projections(table)
        for module, low_rank in file.modules.items():
            found = _NAME.fullmatch(module)
            projection = found["projection"] if found else ""
            if found is None or int(found["layer"]) >= len(table.layers) or projection not in shapes:
                raise UnsupportedFamily(f"adapter {file.name} changes {module}")
            if (low_rank.up.shape[0], low_rank.down.shape[1]) != shapes[projection][0]:
                raise UnsupportedFamily(f"adapter {file.name} has other sizes in {module}")
            self._placed.setdefault(int(found["layer"]), {})[projection] = low_rank

    @property
    def changed(self) -> frozenset[str]:
        """Layers and projections that it changes."""
        return frozenset(f"{index}.{projection}" for index, placed in self._placed.items() for projection in placed)

    def layer(self, index: int) -> dict[str, list[Part]]:
        """What it adds to a layer, by product. Raises InvalidModel for numbers that are not finite."""
        placed = self._placed.get(index, {})
        parts: dict[str, list[Part]] = {product: [] for product in PRODUCTS}
        products = read_products(self._file, placed.values(), torch.float32, torch.device("cpu"))
        for projection, (down, up) in zip(placed, products, strict=True):
            parts[_OF[projection]].append(Part(down, up, self._columns[projection]))
        return parts


def _first_columns(table: DecoderTable) -> dict[str, int]:
    """Where the columns of each projection begin in its product."""
    ends = dict.fromkeys(PRODUCTS, 0)
    first = {}
    for projection, ((outputs, _), _) in projections(table).items():
        first[projection] = ends[_OF[projection]]
        ends[_OF[projection]] += outputs
    return first
