"""Runs an encoder-decoder for many rows: each prompt through the encoder once, then all rows that decode in one forward pass.

A prompt is the encoder's input, so the decoder's first position, which runs its start token, belongs to the prompt's last token: the row's
tokens after the prompt are the decoder's at positions 1, 2, …
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tgi_core.backend import CacheGroup, CacheKind, Capacity, Feature, Kernel, Memory, OutOfMemory, WarmupPlan
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.decoder_rules import DecoderRules
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.encoder_decoder.lanes import Lanes
from tgi_core.engine.encoder_decoder.limits import PositionLimits
from tgi_core.engine.encoder_decoder.model import CHUNK, EncoderDecoderModel
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.runner import StepLogits

PROBE_POSITIONS = 8
"""Positions of each kind that the self-check's lanes hold."""


class EncoderDecoderRunner:
    """A runner whose cache has one lane per row."""

    features: frozenset[Feature] = frozenset()
    cache_dtype = "auto"
    block_sizes: tuple[int, ...] = ()

    def __init__(
        self, model: EncoderDecoderModel, shape: ModelShape, limits: PositionLimits, kit: DeviceKit, rules: DecoderRules
    ) -> None:
        self.kernels: tuple[Kernel, ...] = (Kernel("attention", "the model's own, all rows at once"),)
        self.shape, self.limits, self.rules = shape, limits, rules
        self._model, self._kit = model, kit
        self._layers = model.layers()
        self._lanes: Lanes | None = None

    def use_probe_cache(self) -> None:
        """Use a cache of a few short rows until `release`."""
        self._allocate(3, PROBE_POSITIONS, PROBE_POSITIONS)

    def reserve(self, plan: WarmupPlan) -> Capacity:
        """Allocate the cache and promise limits. Raises OutOfMemory."""
        capacity = self.promise(plan)
        prompt = capacity.groups[0].block_size
        self._allocate(capacity.max_rows, prompt, capacity.max_row_tokens - prompt)
        return capacity

    def promise(self, plan: WarmupPlan) -> Capacity:
        """The limits that `reserve` would promise now. Raises OutOfMemory."""
        prompt, answer = self.limits.within(plan.max_row_tokens)
        wanted = plan.max_rows or self._kit.default_rows()
        activations = self._activation_bytes(wanted, prompt)
        size = self.shape.dtype.itemsize
        row_bytes = size * sum(each.cross.elements * prompt + each.own.elements * answer for each in self._layers)
        free = self._kit.free_bytes() - activations - 4 * len(self._layers) * self._kit.allocation_bytes
        rows = min(wanted, plan.num_blocks or wanted, max(0, free) // row_bytes)
        if rows < min(1, wanted):
            raise OutOfMemory(
                f"cache: a row of {prompt} tokens of prompt and {answer} of answer needs {row_bytes:,} bytes, and {max(0, free):,} are "
                "free; set --max-total-tokens to shorten rows"
            )
        memory = (
            *self.shape.weights,
            Memory("kv cache", rows * row_bytes),
            Memory("activations", activations),
            Memory("reserve", max(0, free - rows * row_bytes)),
        )
        group, total = CacheGroup(CacheKind.CROSS, prompt, rows), prompt + answer
        # prompts run one by one, so a step of many tokens takes no more memory; the longest one fits along with all other rows
        step_tokens = max(plan.max_step_tokens or self._kit.default_step_tokens(), total + rows)
        return Capacity((group,), rows, total, step_tokens, rows, memory=memory)

    def _activation_bytes(self, rows: int, prompt: int) -> int:
        """Bytes of a step: one prompt at a time goes through the encoder, and attention with a bias per pair of positions has three
        tensors of all pairs."""
        shape = self.shape
        pairs = 3 * self.limits.encoder_heads * prompt * prompt * shape.dtype.itemsize if self._model.has_biases else 0
        swap = 2 * shape.dtype.itemsize * max(max(each.own.elements, each.cross.elements) for each in self._layers) * prompt
        return shape.activation_bytes(rows, max(prompt, CHUNK, rows)) + CHUNK * shape.vocab_size * 8 + pairs + swap

    def _allocate(self, lanes: int, prompt: int, answer: int) -> None:
        self._lanes = Lanes(self._layers, lanes, prompt, answer, self.shape.dtype, self._kit.device)
        self._model.reserve(answer, self.limits.pad)

    def run(self, row_inputs: Sequence[RowInput]) -> StepLogits:
        """Compute one step."""
        lanes = self._lanes_in_use()
        decoding = [each for each in row_inputs if each.start >= each.row.request.prompt_len]
        starting = [each for each in row_inputs if each.start < each.row.request.prompt_len]
        found: dict[int, Tensor] = {}
        with torch.inference_mode():
            lanes.arrange([_block(each) for each in decoding])
            for each in starting:
                lanes.begin(_block(each))
            lanes.arrange([_block(each) for each in starting], len(decoding))
            if decoding:
                found |= self._decode(lanes, decoding)
            for each in starting:
                found[each.row.request.id] = self._begin(lanes, each)
            logits = [found[each.row.request.id] for each in row_inputs if each.yields]
            return StepLogits(torch.stack(logits) if logits else torch.zeros(0, self.shape.vocab_size))

    def _decode(self, lanes: Lanes, row_inputs: Sequence[RowInput]) -> dict[int, Tensor]:
        """The next token of each row; logits by request."""
        ordered = sorted(row_inputs, key=lambda each: lanes[_block(each)])
        positions = [each.start - each.row.request.prompt_len + 1 for each in ordered]
        prompts = [each.row.request.prompt_len for each in ordered]
        logits = self._model.run(lanes, [each.row.tokens[each.start] for each in ordered], positions, prompts)
        for each, position in zip(ordered, positions, strict=True):
            lanes.written(_block(each), each.row.request.prompt_len, position + 1)
        return {each.row.request.id: logits[index] for index, each in enumerate(ordered)}

    def _begin(self, lanes: Lanes, row_input: RowInput) -> Tensor:
        """A row's prompt and, if it is continued, its answer so far; logits [vocabulary]."""
        row, prompt_len = row_input.row, row_input.row.request.prompt_len
        states = self._model.encode(row.tokens[:prompt_len])
        tokens = [self.rules.start, *row.tokens[prompt_len : row_input.start + row_input.take]]
        lanes.written(_block(row_input), prompt_len, len(tokens))
        return self._model.begin(lanes, lanes[_block(row_input)], states, tokens)

    def _lanes_in_use(self) -> Lanes:
        if self._lanes is None:
            raise RuntimeError("run before reserve")
        return self._lanes

    def release(self) -> None:
        """Free the cache."""
        self._lanes = None


def _block(row_input: RowInput) -> int:
    return row_input.row.tables[0][0]
