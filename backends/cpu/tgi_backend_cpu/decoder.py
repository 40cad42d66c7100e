"""A decoder of the Llama family in one native call per step."""

from __future__ import annotations

import ctypes
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tgi_backend_cpu.adapters import pack_table
from tgi_backend_cpu.attention import HEAD_SIZES, NATIVE_CACHES
from tgi_backend_cpu.decoder_cache import DecoderCache
from tgi_backend_cpu.flat_step import flatten
from tgi_backend_cpu.interface import Layer, Layout, Linear, Model, Panels, Segment, Step
from tgi_backend_cpu.kernels import DTYPES, Arena, Kernels
from tgi_backend_cpu.packing import pack
from tgi_backend_cpu.packing.panels import Forget
from tgi_backend_cpu.sampling import NativeSampler
from tgi_backend_cpu.table_sizes import has_fused_rope, workspace_bytes
from tgi_core.backend import CacheGroup, CacheKind, Capacity, Feature, Kernel, Progress, WarmupPlan
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.attention.cache import BLOCK_SIZES, PagedCache
from tgi_core.engine.cache_sizes import window_layers
from tgi_core.engine.decoder.loading import attention_layers
from tgi_core.engine.decoder.table import DecoderTable
from tgi_core.engine.decoder.unsupported import UnsupportedFamily
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.memory import CacheBeside, plan_capacity
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.prompt_scores import prompt_logprobs
from tgi_core.engine.quantization.weight import Weight, concatenated
from tgi_core.engine.runner import HiddenStates, LayerStates, StepLogits


def refusal(table: DecoderTable, dtype: torch.dtype) -> str:
    """Why the kernels cannot run a table; empty if they can."""
    if dtype not in DTYPES:
        return f"the dtype is {dtype}"
    if table.head_size not in HEAD_SIZES:
        return f"head size {table.head_size}, not a multiple of 16 up to {HEAD_SIZES[-1]}"
    if table.hidden % 2 or table.intermediate % 2:
        return "its sizes are odd"
    return ""


def step_kernel(table: DecoderTable) -> Kernel:
    """The kernel that runs the steps of a table."""
    return Kernel("step", "table", f"fused decoder for {table.model_type}: one native call per step")


class PackedDecoder:
    """A table's weights, packed once from the mapped files, and the native structure that points to them."""

    def __init__(self, kernels: Kernels, weights: DecoderWeights, progress: Progress) -> None:
        self.table, self.dtype = weights.table, weights.dtype
        self._kernels, self._arena = kernels, Arena(kernels)
        self._kept: list[Tensor] = []
        self.saved_bytes = 0
        """Bytes that the packed weights save compared with dense ones."""
        count = len(self.table.layers)
        # First: nothing else takes as much memory beside what it becomes.
        self._head = self._linear([weights.head()], None, forget=weights.forget)
        weights.forget()
        self.layers = (Layer * count)()
        for index in range(count):
            self.layers[index] = self._layer(weights, index)
            weights.forget()
            progress("loading weights", index + 1, count, "step")
        self.adapters = pack_table(kernels, self._arena, weights.adapters, count)
        self.model = self._model(weights)

    @property
    def num_bytes(self) -> int:
        """Bytes of the packed weights, all of which a step reads; without adapters and the embedding."""
        return self._arena.num_bytes - self.adapters.num_bytes

    def description(self) -> str:
        """A description of how the weights are stored, for logs."""
        found = [getattr(layer, name) for layer in self.layers for name in ("qkv", "output", "gate_up", "down")]
        counts = Counter(linear.layout for linear in (*found, self.model.head))
        names = {
            Layout.CODES4: "4-bit",
            Layout.CODES8: "8-bit",
            Layout.E4M3: "8-bit floats",
            Layout.LEVELS: "4-bit levels",
            Layout.INT8: "8-bit, times rows of 8 bits,",
            Layout.INT4: "4-bit, times rows of 8 bits,",
            Layout.BF12: "lossless 12-bit",
        }
        size = f"{self.num_bytes / 2**20:,.0f} MiB"
        told = [f"{name} in {counts[layout]} of {len(found) + 1} matrices" for layout, name in names.items() if counts[layout]]
        return ", ".join([size, *(told or ["dense"])])

    def _layer(self, weights: DecoderWeights, index: int) -> Layer:
        found, kind = weights.layer(index), self.table.layers[index]
        mlp = found.dense
        return Layer(
            qkv=self._heads(found.qkv, found.qkv_bias),
            output=self._linear([found.output], found.output_bias),
            gate_up=self._linear([mlp.gate, mlp.up], mlp.gate_up_bias, Panels.PAIRS),
            down=self._linear([mlp.down], mlp.down_bias),
            attention_norm=self._floats(found.attention_norm),
            mlp_norm=self._floats(found.mlp_norm),
            query_norm=self._floats(found.query_norm),
            key_norm=self._floats(found.key_norm),
            window=kind.window or 0,
            rotary=int(kind.rotary),
        )

    def _model(self, weights: DecoderWeights) -> Model:
        table = self.table
        self.embedding = weights.embedding()
        """[vocabulary, hidden]. A step reads it from the file instead if the model is quantized and the file has these numbers."""
        # Mapped, a row would bring its neighbours into memory; reading each makes prefill 0.7 % slower for SmolLM2-135M.
        self._embedding_place = place = weights.embedding_place() if weights.quantized else None
        return Model(
            hidden=table.hidden,
            intermediate=table.intermediate,
            layers=len(table.layers),
            heads=table.heads,
            kv_heads=table.kv_heads,
            head_size=table.head_size,
            rotary=table.rotary.size,
            epsilon=table.epsilon,
            embedding_scale=table.embedding_scale,
            attention_scale=table.attention_scale,
            residual_scale=table.residual_scale,
            logit_scale=table.logit_scale,
            rotary_scale=table.rotary.scale,
            bfloat16=int(self.dtype is torch.bfloat16),
            fused_rope=int(has_fused_rope(self.table)),
            layer=self.layers,
            final_norm=self._floats(weights.final_norm()),
            frequencies=self._floats(torch.tensor(table.rotary.frequencies)),
            embedding=self.embedding.data_ptr() if place is None else None,
            embedding_start=0 if place is None else place.start,
            embedding_file=-1 if place is None else place.file.descriptor,
            head=self._head,
            adapters=self.adapters.found,
            ranks=self.adapters.ranks,
        )

    def _heads(self, weights: list[Weight], bias: Tensor | None) -> Linear:
        """Queries, keys and values; if the GEMM rotates them, the first half of each head is paired with its second."""
        if not has_fused_rope(self.table):
            return self._linear(weights, bias)
        whole, half = concatenated(weights), self.table.head_size // 2
        order = torch.arange(whole.shape[0]).view(-1, 2, half).transpose(0, 1).flatten(1)
        if bias is not None:
            bias = bias[order.flatten()]
        return self._linear([whole.reordered(rows) for rows in order], bias, Panels.PAIRS)

    def _linear(
        self, weights: list[Weight], bias: Tensor | None, panels: Panels = Panels.PLAIN, forget: Forget = lambda: None
    ) -> Linear:
        if bias is not None:
            bias = bias.float()
            if panels is Panels.PAIRS:
                bias = _interleaved(bias)
            self._kept.append(bias)
        before = self._arena.num_bytes
        packed = pack(self._kernels, self._arena, weights, bias, panels, forget)
        self.saved_bytes += sum(weight.dense_bytes for weight in weights) - (self._arena.num_bytes - before)
        return packed

    def _floats(self, vector: Tensor | None) -> int | None:
        """The address of a float32 copy of a vector, which lives as long as this object."""
        if vector is None:
            return None
        self._kept.append(vector.float().clone())
        return self._kept[-1].data_ptr()


def _interleaved(bias: Tensor) -> Tensor:
    """Biases of pairs in the order of the panels: 16 of first members, then 16 of their second members."""
    size = bias.shape[0] // 2
    padded = torch.zeros(2, -(-size // 16) * 16)
    padded[:, :size] = bias.view(2, size)
    return padded.view(2, -1, 16).transpose(0, 1).reshape(-1).contiguous()


class DecoderRunner:
    """Runs a packed decoder; see `TableRunner`."""

    features = frozenset({Feature.BATCH_INVARIANT, Feature.CHUNKED_PREFILL, Feature.PREFIX_REUSE, Feature.SPECULATION})
    rounds_inputs = False  # by so little that the self-check needs no other limit
    block_sizes = BLOCK_SIZES

    def __init__(self, kernels: Kernels, kit: DeviceKit, weights: DecoderWeights, progress: Progress) -> None:
        if reason := refusal(weights.table, weights.dtype):
            raise UnsupportedFamily(reason)
        table = weights.table
        self.agree: Callable[[int], int] = int  # it runs on one rank
        self._kernels, self._kit, self._plain_sampler = kernels, kit, NativeSampler(kernels)
        self.cache_dtype, self._stored_dtype = "auto", weights.dtype
        if kit.kv_cache_dtype is not None:
            self.cache_dtype, self._stored_dtype = kit.kv_cache_dtype.name, kit.kv_cache_dtype.dtype
        self.packed = PackedDecoder(kernels, weights, progress)
        self.shape = ModelShape(
            weights.dtype,
            table.vocab_size,
            table.max_positions,
            table.hidden,
            table.intermediate,
            weights.bytes_beside(self.packed.saved_bytes),
            self.packed.adapters.num_bytes,
            token_bytes=workspace_bytes(table, weights.dtype, self.packed.adapters.ranks),
        )
        self._adapters: dict[str | None, int] = {adapter.name: number for number, adapter in enumerate(weights.adapters)}
        self.kernels = (
            step_kernel(table),
            Kernel("weights", "packed", self.packed.description()),
        )
        self._space = ctypes.c_void_p(kernels.call.tgi_workspace())
        weakref.finalize(self, kernels.call.tgi_workspace_free, self._space)
        self.cache: DecoderCache | None = None
        self.beside: CacheBeside | None = None
        """Another model's cache with the same blocks as this one's."""
        self._layers, self._separates = tuple(layer.shape for layer in attention_layers(table)), False
        self._logits = torch.empty(
            0, table.vocab_size
        )  # one row per row of a step, reused: fresh pages would cost as much as sampling
        self._block_size, self._keeps_hidden, self._keeps_tokens = BLOCK_SIZES[0], False, False
        self._state_layers = np.zeros(0, np.int32)
        """The layers before which hidden states are kept."""

    def separate_windows(self) -> None:
        """See `SeparatesWindows`. Another cache's blocks are those of the group that keeps all positions."""
        self._separates = self.beside is None or not all(shape.window for shape in self._layers)

    def reserve(self, plan: WarmupPlan) -> Capacity:
        """Reserve the cache and promise limits. Raises OutOfMemory."""
        block_size = plan.block_size or BLOCK_SIZES[0]
        block_bytes = self.cache_block_bytes(block_size)
        windows = window_layers(self._layers, block_size, self._stored_dtype) if self._separates else None
        capacity = plan_capacity(plan, self.shape, self._kit, block_size, block_bytes, beside=self.beside, windows=windows)
        group = next((group for group in capacity.groups if group.kind is CacheKind.WINDOW), None)
        self.use_cache(capacity.groups[0].num_blocks, block_size, group)
        self._logits = torch.empty(capacity.max_rows * (1 + plan.draft), self.shape.vocab_size)
        return capacity

    def use_probe_cache(self) -> None:
        """Use a cache of two blocks, for the self-check."""
        self.use_cache(2, BLOCK_SIZES[0])

    def use_cache(self, num_blocks: int, block_size: int, windows: CacheGroup | None = None) -> None:
        """Use a cache of this size until `release`; `windows` is the group of layers with a window, if they have one of their own."""
        layer_bytes = self.cache_block_bytes(block_size) // len(self._layers)
        self.cache = DecoderCache(self._kernels, self._layers, layer_bytes, num_blocks, windows)
        self.cache.attach(self.packed.layers)
        self._block_size = self.packed.model.block_size = block_size
        self.packed.model.cache_dtype = NATIVE_CACHES.get(self._stored_dtype, 0)

    def cache_block_bytes(self, block_size: int) -> int:
        """Bytes of a block of this size."""
        return PagedCache.block_bytes(self._layers, block_size, self._stored_dtype)

    def run(self, row_inputs: Sequence[RowInput]) -> StepLogits:
        """Compute one step. The next step overwrites the logits."""
        if self.cache is None:
            raise RuntimeError("run before reserve")
        arranged = self._arranged(row_inputs)
        flat = flatten(arranged, self._block_size, self.cache.tables, self._keeps_tokens)
        segments, apart = self._segments(arranged), len(flat.wanted) > len(flat.yielding)
        prompt, first = dict[int, Tensor](), flat.last
        logits = self._room(len(flat.yielding))
        states = torch.empty(len(flat.ids), len(self._state_layers) * self.shape.hidden_size, dtype=self.shape.dtype)
        step = Step(
            tokens=len(flat.ids),
            rows=len(row_inputs),
            wanted=len(flat.wanted),
            table_stride=flat.tables[0].shape[1],
            ids=flat.ids.ctypes.data,
            row=flat.rows.ctypes.data,
            table=flat.tables[0].ctypes.data,
            wanted_tokens=flat.wanted.ctypes.data,
            logits=None if apart else logits.data_ptr(),
            segment=segments,
            segments=len(segments),
            state_layers=len(self._state_layers),
            state_layer=self._state_layers.ctypes.data,
            states=states.data_ptr(),
            window_table=flat.tables[1].ctypes.data if len(flat.tables) > 1 else None,
        )
        self._kernels.call.tgi_step(self._kernels.pool, ctypes.byref(self.packed.model), ctypes.byref(step), self._space)
        if flat.scored.places:
            places, following = torch.tensor(flat.scored.places, dtype=torch.int32), torch.tensor(flat.scored.following)
            prompt = flat.scored.by_request(prompt_logprobs(self._head, places, following))
        if apart:
            logits = self._head(torch.tensor(flat.yielding, dtype=torch.int32))
            first = dict(zip(first, np.searchsorted(flat.yielding, list(first.values())).tolist(), strict=True))
        hidden = HiddenStates(flat.last, self._hidden) if self._keeps_hidden else None
        layers = LayerStates(flat.first, states) if len(self._state_layers) else None
        if self._keeps_tokens:
            layers = LayerStates(flat.first, self._hidden(list(range(len(flat.ids)))))
        return replace(StepLogits.of(row_inputs, logits, first, prompt, self._plain_sampler, hidden), layers=layers)

    def keep_tokens(self) -> str:
        """See `KeepsTokens`: all tokens are wanted."""
        self._keeps_tokens = True
        return ""

    def keep_layers(self, layers: Sequence[int]) -> None:
        """See `eagle3.KeepsLayers`."""
        self._state_layers = np.array(layers, np.int32)

    @property
    def num_layers(self) -> int:
        """See `eagle3.KeepsLayers`."""
        return len(self.packed.table.layers)

    @property
    def embedding(self) -> Tensor:
        """See `eagle3.KeepsLayers` and `KeepsTokens`."""
        return self.packed.embedding

    def keep_hidden(self) -> str:
        """See `KeepsHidden`: the workspace holds them until the next step."""
        self._keeps_hidden = True
        return ""

    def _hidden(self, places: list[int]) -> Tensor:
        """Hidden states [places, hidden] of the last step's wanted tokens, after the final norm."""
        hidden = torch.empty(len(places), self.shape.hidden_size, dtype=self.shape.dtype)
        chosen = np.array(places, np.int32)
        arguments = ctypes.byref(self.packed.model), self._space, chosen.ctypes.data, len(places), hidden.data_ptr()
        self._kernels.call.tgi_hidden(*arguments)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocabulary] of hidden states [rows, hidden], in the dtype of the model."""
        hidden, logits = hidden.contiguous(), torch.empty(len(hidden), self.shape.vocab_size, dtype=self.shape.dtype)
        flag, head = int(self.shape.dtype is torch.bfloat16), ctypes.byref(self.packed.model.head)
        self._kernels.call.tgi_linear(self._kernels.pool, flag, head, hidden.data_ptr(), logits.data_ptr(), len(hidden))
        return logits

    def _head(self, places: Tensor) -> Tensor:
        """Logits of the last step's wanted tokens at int32 `places`, if it computed none. The next call overwrites them."""
        logits = self._room(len(places))
        arguments = (ctypes.byref(self.packed.model), self._space, places.data_ptr(), len(places), logits.data_ptr())
        self._kernels.call.tgi_head(self._kernels.pool, *arguments)
        return logits

    def _room(self, rows: int) -> Tensor:
        """Memory for logits [rows, vocabulary]."""
        return self._logits[:rows] if rows <= self._logits.shape[0] else torch.empty(rows, self.shape.vocab_size)

    def _arranged(self, row_inputs: Sequence[RowInput]) -> Sequence[RowInput]:
        """The inputs sorted by adapter, those without one first."""
        if not self._adapters or all(row_input.row.request.adapter is None for row_input in row_inputs):
            return row_inputs
        return sorted(row_inputs, key=lambda row_input: self._adapters.get(row_input.row.request.adapter, -1))

    def _segments(self, arranged: Sequence[RowInput]) -> ctypes.Array[Segment]:
        """The tokens of each adapter in a step with this order of inputs."""
        found: list[Segment] = []
        first = 0
        for row_input in arranged if self._adapters else ():
            number = self._adapters.get(row_input.row.request.adapter)
            if number is not None:
                if not found or found[-1].adapter != number:
                    found.append(Segment(number, first, first))
                found[-1].last = first + row_input.take
            first += row_input.take
        return (Segment * len(found))(*found)

    def part_times(self) -> dict[str, int]:
        """Nanoseconds spent in each part of a step since the start."""
        return self._kernels.times()

    def release(self) -> None:
        """Free the cache."""
        self.cache = None
