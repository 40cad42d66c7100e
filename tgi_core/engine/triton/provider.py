"""The attention provider whose kernels are Triton's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tgi_core.engine.attention.cache import BLOCK_SIZES, LayerShape, PagedLayer
from tgi_core.engine.attention.checking import disagreement
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepArrays, StepMetadata
from tgi_core.engine.attention.provider import AttentionLayer
from tgi_core.engine.triton.probing import probe
from tgi_core.engine.triton.shape import AttentionShape
from tgi_core.engine.triton.tiles import Phase, Tile, TileTable, grown

DTYPES = (torch.bfloat16, torch.float16, torch.float32)

FP8_DTYPES = {"fp8e4nv": torch.float8_e4m3fn, "fp8e4b8": torch.float8_e4m3fnuz}
"""8-bit dtypes by Triton's names."""

WIDEST = 256
"""The largest head size."""

_CHECKED_SPLITS = (1, 3)
"""Decode is checked with and without splits, whatever would be chosen for so few rows."""


class TritonLayer:
    """One layer's cache: keys and values [num_blocks + 1, block_size, kv_heads, width], contiguous.

    It is never zeroed: kernels load no position that its row has not written.
    """

    __slots__ = ("keys", "scales", "shape", "values")

    def __init__(self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device) -> None:
        places = (num_blocks + 1, block_size, shape.kv_heads)
        self.keys = torch.empty(*places, shape.key_width, dtype=dtype, device=device)
        self.values = torch.empty(*places, shape.value_width, dtype=dtype, device=device)
        self.shape = AttentionShape(shape.kv_heads, 1, shape.key_width, shape.value_width, block_size)
        self.scales = shape.scales.of(dtype)

    def write(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value [kv_heads, tokens, width] at `slots` [tokens]; slot -1 is not written."""
        from tgi_core.engine.triton.launching import launch_write

        launch_write(self.shape, self.keys, self.values, _dense(key), _dense(value), slots, self.scales.inverses)

    def zero_blocks(self, blocks: Tensor) -> None:
        """Nothing to do: stale elements are never loaded."""


class TritonAttention:
    """The provider `triton`, with the tiles of a chip of so many multiprocessors.

    `splits` fixes into how many parts decode rows are split; without it that follows from the step.
    """

    name = "triton"
    block_sizes = BLOCK_SIZES
    invariant = False  # decode rows are split by their number, and rows of several tokens are not
    sees_ahead = False

    def __init__(self, tiles: TileTable, multiprocessors: int, splits: int | None = None) -> None:
        self.kv_cache_dtypes = tuple(dtype for name, dtype in FP8_DTYPES.items() if name == tiles.fp8)
        self._tiles, self._multiprocessors, self._splits = tiles, multiprocessors, splits

    def probe(self) -> str:
        """Why this provider cannot run here; empty when it can."""
        return probe()

    def refusal(self, layers: Sequence[LayerShape], asked: Sequence[AttentionParameters], dtype: torch.dtype) -> str:
        """Why it does not support these layers; empty if it does."""
        if dtype not in DTYPES:
            return f"the dtype is {dtype}"
        if any(each.bias is not None and each.bias.slopes is None for each in asked):
            return "biases that are not linear"
        if any(each.selected is not None for each in asked):
            return "layers with an index"
        for shape in layers:
            widest = max(shape.key_width, shape.value_width)
            if widest > WIDEST:
                return f"heads of {widest} elements, more than {WIDEST}"
            try:
                for phase in Phase:
                    self._tiles.choose(phase, dtype.itemsize, widest)
            except LookupError as error:
                return str(error)
        return ""

    def self_check(self, layers: Sequence[AttentionLayer], dtype: torch.dtype, device: torch.device) -> str:
        """What goes wrong when a few ragged rows run through the kernels that these layers need; empty when nothing does."""
        for splits in _CHECKED_SPLITS:
            found = disagreement(TritonAttention(self._tiles, self._multiprocessors, splits), layers, dtype, device)
            if found:
                return found
        return ""

    def new_layer(
        self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> TritonLayer:
        """One layer's cache."""
        return TritonLayer(shape, num_blocks, block_size, dtype, device)

    def attend(self, query: Tensor, cache: PagedLayer, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """query [heads, tokens, width], over keys and values in the cache → [tokens, heads, value width]."""
        if not isinstance(cache, TritonLayer):
            raise TypeError(f"a cache of {type(cache).__name__}, which another provider made")
        return self.attend_rows(query, cache, step.arrays(), parameters)

    def attend_rows(self, query: Tensor, cache: TritonLayer, step: StepArrays, parameters: AttentionParameters) -> Tensor:
        """The same from the arrays of a step alone, as a captured step has them. Never synchronizes."""
        from tgi_core.engine.triton.launching import Operands, decode_splits, launch_decode, launch_varlen

        heads, tokens, _ = query.shape
        shape = _asked_shape(cache, heads, parameters)
        out = query.new_empty(tokens, heads, shape.value_width)
        slopes = None if parameters.bias is None else parameters.bias.slopes
        scale, value_scale = parameters.scaling * cache.scales.key, cache.scales.value
        operands = Operands(
            shape, out, _dense(query), cache.keys, cache.values, scale, value_scale, sinks=parameters.sinks, slopes=slopes
        )
        if step.decode_rows:
            tile = self._tile(Phase.DECODE, shape, query.dtype)
            launch_decode(operands, step, tile, self._splits or decode_splits(shape, step, tile, self._multiprocessors))
        if step.lengths.shape[0] > step.decode_rows:
            launch_varlen(operands, step, self._varlen_tile(shape, step.max_query, query.dtype))
        return out

    def _tile(self, phase: Phase, shape: AttentionShape, dtype: torch.dtype) -> Tile:
        return self._tiles.choose(phase, dtype.itemsize, max(shape.key_width, shape.value_width))

    def _varlen_tile(self, shape: AttentionShape, max_query: int, dtype: torch.dtype) -> Tile:
        """The tile of decode where the tokens of every row fit it, as drafts do: rows of few tokens are bound by memory too."""
        small = self._tile(Phase.DECODE, shape, dtype)
        if max_query * shape.group <= small.queries:
            return small
        return grown(self._tile(Phase.PREFILL, shape, dtype), shape.group)


def _asked_shape(cache: TritonLayer, heads: int, parameters: AttentionParameters) -> AttentionShape:
    kept = cache.shape
    return AttentionShape(
        kept.kv_heads,
        heads // kept.kv_heads,
        kept.key_width,
        kept.value_width,
        kept.page,
        parameters.window,
        parameters.chunk,
        parameters.softcap,
        sinks=parameters.sinks is not None,
        alibi=parameters.bias is not None,
    )


def _dense(tensor: Tensor) -> Tensor:
    """The tensor with its last dimension contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
