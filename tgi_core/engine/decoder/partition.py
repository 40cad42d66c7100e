"""A decoder table's weights divided over ranks: each has some heads and some of the MLP's columns, and outputs are summed.

Embedding, norms and the output layer are whole on every rank, so that all of them compute the same logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tgi_core.backend import Group, Unsupported
from tgi_core.engine.all_reduce import AllReduce
from tgi_core.engine.attention.cache import CacheScales
from tgi_core.engine.decoder.loading import LoadedDecoder, LoadedLayer
from tgi_core.engine.decoder.weights import DecoderWeights, LayerWeights, wanted_tensors
from tgi_core.engine.quantization.linear import Linear
from tgi_core.engine.quantization.weight import Weight, concatenated
from tgi_core.engine.weights.mapped import FilePlace


class RankWeights(DecoderWeights):
    """One rank's part of a table's weights; its table has the sizes of that part."""

    def __init__(self, whole: DecoderWeights, group: Group) -> None:
        """Raises Unsupported for sizes that the number of ranks does not divide."""
        table, world = whole.table, group.world
        if table.experts is not None or table.sinks or table.latent is not None:
            raise Unsupported(f"--num-shard {world}: experts, latent attention and attention sinks of a table cannot be divided")
        sizes = {"attention heads": table.heads, "KV heads": table.kv_heads, "columns of the MLP": table.intermediate}
        if odd := [f"{size} {name}" for name, size in sizes.items() if size % world]:
            raise Unsupported(f"--num-shard {world}: {odd[0]} cannot be divided evenly over {world} ranks")
        self._whole, self._group = whole, group
        self.table = replace(
            table, heads=table.heads // world, kv_heads=table.kv_heads // world, intermediate=table.intermediate // world
        )
        self.dtype, self.adapters = whole.dtype, whole.adapters

    @property
    def num_bytes(self) -> int:
        """Bytes of this rank's parameters."""
        shapes = wanted_tensors(self.table, "").values()
        return sum(torch.Size(shape).numel() for shape in shapes) * self.dtype.itemsize

    def cache_scales(self) -> dict[int, CacheScales]:
        """See `DecoderWeights.cache_scales`."""
        return self._whole.cache_scales()

    def forget(self) -> None:
        """See `DecoderWeights.forget`."""
        self._whole.forget()

    def embedding(self) -> Tensor:
        """[vocabulary, hidden]."""
        return self._whole.embedding()

    @property
    def quantized(self) -> bool:
        """See `DecoderWeights.quantized`."""
        return self._whole.quantized

    def embedding_place(self) -> FilePlace | None:
        """See `DecoderWeights.embedding_place`."""
        return self._whole.embedding_place()

    def head(self) -> Weight:
        """[vocabulary, hidden]."""
        return self._whole.head()

    def final_norm(self) -> Tensor:
        """[hidden]."""
        return self._whole.final_norm()

    def layer(self, index: int) -> LayerWeights:
        """This rank's rows of weights that read the hidden state, and its columns of those that add to it; only rank 0 adds biases."""
        found, table = self._whole.layer(index), self._whole.table
        heads = [count * table.head_size for count in (table.heads, table.kv_heads, table.kv_heads)]
        inner = [table.intermediate]
        leads, mlp = self._group.rank == 0, found.dense
        return replace(
            found,
            qkv=self._rows(concatenated(found.qkv), heads),
            qkv_bias=self._elements(found.qkv_bias, heads),
            output=self._columns(found.output),
            output_bias=found.output_bias if leads else None,
            mlp=replace(
                mlp,
                gate=self._rows(mlp.gate, inner)[0],
                up=self._rows(mlp.up, inner)[0],
                gate_up_bias=self._elements(mlp.gate_up_bias, inner * 2),
                down=self._columns(mlp.down),
                down_bias=mlp.down_bias if leads else None,
            ),
        )

    def _ranges(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """This rank's part of consecutive sections of these sizes."""
        rank, world, begin, found = self._group.rank, self._group.world, 0, []
        for size in sizes:
            found.append((begin + rank * size // world, begin + (rank + 1) * size // world))
            begin += size
        return found

    def _rows(self, weight: Weight, sizes: Sequence[int]) -> list[Weight]:
        return [weight.rows(start, end) for start, end in self._ranges(sizes)]

    def _elements(self, bias: Tensor | None, sizes: Sequence[int]) -> Tensor | None:
        return None if bias is None else torch.cat([bias[start:end] for start, end in self._ranges(sizes)])

    def _columns(self, weight: Weight) -> Weight:
        return weight.columns(*self._ranges([weight.shape[1]])[0])


@dataclass(frozen=True, slots=True)
class RowParallelLinear:
    """A linear layer whose results are summed over the ranks of a process group."""

    linear: Linear
    reduce: AllReduce

    @property
    def num_bytes(self) -> int:
        """See `Linear.num_bytes`."""
        return self.linear.num_bytes

    @property
    def dense(self) -> Tensor | None:
        """See `Linear.dense`."""
        return self.linear.dense

    def __call__(self, input: Tensor) -> Tensor:
        """See `Linear.__call__`."""
        return self.reduce(self.linear(input))


def with_all_reduce(decoder: LoadedDecoder, reduce: AllReduce) -> LoadedDecoder:
    """One rank's decoder, which adds to the hidden state what all ranks contribute."""

    def reduced(layer: LoadedLayer) -> LoadedLayer:
        mlp = replace(layer.dense, down=RowParallelLinear(layer.dense.down, reduce))
        return replace(layer, output=RowParallelLinear(layer.output, reduce), mlp=mlp)

    return replace(decoder, layers=tuple(map(reduced, decoder.layers)))
