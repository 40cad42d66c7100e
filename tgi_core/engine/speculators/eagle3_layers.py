"""The layers of EAGLE-3: one decoder layer over hidden states of the model, each concatenated with the embedding of the next token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.engine.attention.cache import PagedLayer
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.decoder.loading import attention_layers
from tgi_core.engine.decoder.operators import Heads, HeadSizes
from tgi_core.engine.decoder.torch_operators import TorchOperators
from tgi_core.engine.quantization.linear import Linears
from tgi_core.engine.speculators.eagle3_files import Eagle3Config, Eagle3Tensors

_OPERATORS = TorchOperators()


class Eagle3Layers:
    """The layers on a device."""

    def __init__(
        self, config: Eagle3Config, tensors: Eagle3Tensors, embedding: Tensor, linears: Linears, provider: AttentionProvider
    ) -> None:
        """`embedding` [vocabulary, hidden] are the model's. Raises InvalidModel for damaged files, and for those of another model."""
        self._config, self._provider, device = config, provider, linears.device
        self._embedding = tensors.embedding(embedding).to(device)
        self._combine = linears.load(tensors.combining())
        self._qkv = linears.load(*tensors.projection("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
        self._output = linears.load(*tensors.projection("self_attn.o_proj"))
        self._gate_up = linears.load(*tensors.projection("mlp.gate_proj", "mlp.up_proj"))
        self._down = linears.load(*tensors.projection("mlp.down_proj"))
        self._head = linears.load(tensors.head())
        self._input_norm, self._hidden_norm = tensors.norm("input_layernorm").to(device), tensors.norm("hidden_norm").to(device)
        self._mlp_norm = tensors.norm("post_attention_layernorm").to(device)
        self._final_norm = tensors.norm("norm", of_layer=False).to(device)
        self._tokens = tensors.tokens().to(device)
        tensors.check_all_read()
        self._frequencies = torch.tensor(config.table.rotary.frequencies, device=device)
        self._parameters = attention_layers(config.table)[0].parameters
        matrices = (self._combine, self._qkv, self._output, self._gate_up, self._down, self._head)
        own = 0 if self._embedding is embedding else self._embedding.nbytes
        self.num_bytes = own + sum(matrix.num_bytes for matrix in matrices)

    def combined(self, states: Tensor) -> Tensor:
        """Hidden states [tokens, hidden] from those of the model's layers [tokens, 3 · model's hidden]."""
        return self._combine(states)

    def __call__(self, hidden: Tensor, step: StepMetadata, cache: PagedLayer, keep: Tensor) -> tuple[Tensor, Tensor]:
        """From the hidden states [tokens, hidden] before the tokens of a step: the likeliest tokens after those at `keep`, int64 [kept],
        and the hidden states [kept, hidden] before these."""
        run, epsilon = _OPERATORS, self._config.table.epsilon
        embedded = run.norm(F.embedding(step.input_ids, self._embedding), self._input_norm, epsilon)
        normed = run.norm(hidden, self._hidden_norm, epsilon)
        if step.begun is not None:
            cache.zero_blocks(step.begun)
        qkv, places = self._qkv(torch.cat((embedded, normed), -1)), torch.arange(len(hidden), device=hidden.device)
        query = run.rope_and_cache(qkv, places, step.slots, self._heads(step.positions), cache)
        if not len(keep):
            return keep, hidden[keep]
        attended = self._provider.attend(query, cache, step, self._parameters).flatten(1)
        stream = (normed if self._config.norm_before_residual else hidden)[keep] + self._output(attended[keep])
        stream = stream + self._down(run.silu_mul(self._gate_up(run.norm(stream, self._mlp_norm, epsilon))))
        logits = self._head(run.norm(stream, self._final_norm, epsilon))
        return self._tokens[logits.argmax(-1)], stream

    def _heads(self, positions: Tensor) -> Heads:
        """The heads of tokens at these positions."""
        table, angles = self._config.table, positions.float().unsqueeze(1) * self._frequencies
        cos_sin = torch.cat((angles.cos(), angles.sin()), -1) * table.rotary.scale
        return Heads(HeadSizes(table.heads, table.kv_heads, table.head_size), cos_sin, None)
