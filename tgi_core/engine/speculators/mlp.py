"""MLPSpeculator (Wertheimer et al. 2024, arXiv 2404.19124) in IBM's layout: a small recurrent network from the hidden state and the token
before each guess.

config.json holds `n_predict`, `inner_dim`, `tie_weights` and `scale_input`; the safetensors files hold `speculator.emb.i.weight`
[vocabulary, inner], `speculator.proj.i.weight` [inner, hidden or inner], `speculator.ln.i.weight` and `.bias` [inner], and
`speculator.head.i.weight` [vocabulary, inner]. With tied weights, all places share those of place 0, except for the projection of the
hidden state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.quantization.linear import Linear, Linears
from tgi_core.engine.quantization.weight import Dense
from tgi_core.engine.speculators.files import MOST, SpeculatorConfig, SpeculatorTensors

_EPSILON = 1e-6
_LARGEST_INNER = 1 << 16


@dataclass(frozen=True, slots=True)
class _Place:
    """The layers that guess one token: `embedding` [vocabulary, inner], and the norm's `weight` and `bias` [inner]."""

    embedding: Tensor
    project: Linear
    weight: Tensor
    bias: Tensor
    output: Linear


class MlpSpeculator:
    """See `Heads`."""

    name = "mlp_speculator"

    def __init__(self, directory: Path, shape: ModelShape, linears: Linears, config: SpeculatorConfig) -> None:
        """Raises InvalidModel for damaged files, and for those of a model of another size."""
        self.count, inner = config.number("n_predict", MOST), config.number("inner_dim", _LARGEST_INNER)
        tensors, tied = SpeculatorTensors(SpeculatorTensors.files(directory), shape.dtype), config.switch("tie_weights")
        self._scales = config.switch("scale_input")
        state_weight = 0.5 ** (0.5 / self.count)
        self._state_weight, self._token_weight = state_weight, math.sqrt((1 - state_weight**2) * inner / 2)
        matrices: dict[str, Linear] = {}

        def linear(name: str, rows: int, columns: int) -> Linear:
            if name not in matrices:
                matrices[name] = linears.load(Dense.of(tensors.tensor(f"speculator.{name}.weight", rows, columns)))
            return matrices[name]

        def place(index: int) -> _Place:
            own = 0 if tied else index
            return _Place(
                tensors.tensor(f"speculator.emb.{own}.weight", shape.vocab_size, inner).to(linears.device),
                linear(f"proj.{min(index, 1) if tied else index}", inner, inner if index else shape.hidden_size),
                tensors.tensor(f"speculator.ln.{own}.weight", inner).to(linears.device),
                tensors.tensor(f"speculator.ln.{own}.bias", inner).to(linears.device),
                linear(f"head.{own}", shape.vocab_size, inner),
            )

        self._places = [place(index) for index in range(self.count)]
        embeddings = 1 if tied else self.count
        dense = embeddings * shape.vocab_size * inner * shape.dtype.itemsize
        self.num_bytes = dense + sum(matrix.num_bytes for matrix in matrices.values())

    def __call__(self, hidden: Tensor, newest: Tensor, count: int) -> Tensor:
        """See `Heads`."""
        state, token, guesses = _normed(hidden) / math.sqrt(2) if self._scales else hidden, newest, []
        for place in self._places[:count]:
            mixed = place.project(state) * self._state_weight + F.embedding(token, place.embedding) * self._token_weight
            state = F.gelu(_normed(mixed) * place.weight + place.bias)
            token = place.output(state).argmax(-1)
            guesses.append(token)
        return torch.stack(guesses, dim=-1)


def _normed(state: Tensor) -> Tensor:
    """The state, scaled to mean square 1."""
    return state * torch.rsqrt(state.float().square().mean(-1, keepdim=True) + _EPSILON).to(state.dtype)
