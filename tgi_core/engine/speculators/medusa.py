"""Medusa heads (Cai et al. 2024, arXiv 2401.10774) in TGI's layout: each guesses one token from the same hidden state.

config.json holds `medusa_num_heads` and `medusa_num_layers`; medusa_lm_head.safetensors holds, for head h and layer l,
`h.l.linear.weight` [hidden, hidden] and `.bias`, a residual block x + silu(W·x + b). In version 1, `h.{layers}.weight` [vocabulary,
hidden] follows, its own output head. In version 2, heads have one block and share the output head of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.backend import InvalidModel
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.quantization.linear import Linear, Linears
from tgi_core.engine.quantization.weight import Dense
from tgi_core.engine.speculators.files import MOST, SpeculatorConfig, SpeculatorTensors

WEIGHTS = "medusa_lm_head.safetensors"

_MOST_LAYERS = 16


class MedusaHeads:
    """See `Heads`. `output` computes the model's logits [rows, vocabulary] of hidden states."""

    def __init__(
        self, directory: Path, shape: ModelShape, output: Callable[[Tensor], Tensor], linears: Linears, config: SpeculatorConfig
    ) -> None:
        """Raises InvalidModel for damaged files, and for those of a model of another size."""
        self.count, layers = config.number("medusa_num_heads", MOST), config.number("medusa_num_layers", _MOST_LAYERS, 1)
        if not (directory / WEIGHTS).is_file():
            raise InvalidModel(f"speculator: {directory / WEIGHTS}: not found")
        tensors, hidden = SpeculatorTensors([directory / WEIGHTS], shape.dtype), shape.hidden_size
        version = 1 if f"0.{layers}.weight" in tensors else 2
        if version == 2 and layers != 1:
            raise InvalidModel(f"speculator: {directory / WEIGHTS}: lacks tensor '0.{layers}.weight', the output head of a head")
        self.name = f"medusa v{version}"

        def block(head: int, layer: int) -> Linear:
            name = f"{head}.{layer}.linear"
            weight, bias = tensors.tensor(f"{name}.weight", hidden, hidden), tensors.tensor(f"{name}.bias", hidden)
            return linears.load(Dense.of(weight), bias)

        def own_output(head: int) -> Linear:
            return linears.load(Dense.of(tensors.tensor(f"{head}.{layers}.weight", shape.vocab_size, hidden)))

        heads = range(self.count)
        self._blocks = [[block(head, layer) for layer in range(layers)] for head in heads]
        own = [own_output(head) for head in heads] if version == 1 else []
        self._outputs: list[Callable[[Tensor], Tensor]] = [*own] or [output] * self.count
        self.num_bytes = sum(linear.num_bytes for linear in (*(each for blocks in self._blocks for each in blocks), *own))

    def __call__(self, hidden: Tensor, newest: Tensor, count: int) -> Tensor:
        """See `Heads`."""
        guesses = []
        for blocks, output in zip(self._blocks[:count], self._outputs, strict=False):
            state = hidden
            for block in blocks:
                state = state + F.silu(block(state))
            guesses.append(output(state).argmax(-1))
        return torch.stack(guesses, dim=-1)
