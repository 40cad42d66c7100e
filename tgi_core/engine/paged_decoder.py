"""Runs decoder tables on any device that torch supports: GEMMs by a linear provider, attention by an attention provider, the rest by
`Operators`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from tgi_core.backend import Kernel, Progress
from tgi_core.engine.all_reduce import AllReduce, GroupAllReduce, choose_all_reduce
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.attention_choice import alike, fastest_attention
from tgi_core.engine.collectives import Collectives
from tgi_core.engine.decoder.forward import DecoderForward
from tgi_core.engine.decoder.loading import LoadedDecoder, LoadedExperts, attention_layers, load_decoder
from tgi_core.engine.decoder.operators import LatentHeads, Operators
from tgi_core.engine.decoder.partition import with_all_reduce
from tgi_core.engine.decoder.table import DecoderTable
from tgi_core.engine.decoder.unsupported import UnsupportedFamily
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device import DeviceKit, all_reduce_options, attention_refusal
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.paged_runner import PagedRunner
from tgi_core.engine.quantization.linear import Linears
from tgi_core.engine.selection import HasName, attempt, first_supported

_log = logging.getLogger("tgi_core.engine")

_Choice = TypeVar("_Choice", bound=HasName)


class PagedDecoderRunner(PagedRunner):
    """Runs a decoder, or a rank's part of it, from its table; see `TableRunner`."""

    def __init__(self, kit: DeviceKit, weights: DecoderWeights, operators: Sequence[Operators], progress: Progress) -> None:
        """Load the weights, and choose the first of `operators` and of the kit's attention providers that support them.

        Raises UnsupportedFamily.
        """
        if weights.adapters:
            raise UnsupportedFamily("adapters change single modules")
        table, dtype = weights.table, weights.dtype
        layers = attention_layers(table, None if kit.kv_cache_dtype is None else weights.cache_scales())
        self.operators, provider, kernels = choose_parts(table, dtype, kit, operators)
        linears = Linears(kit.linears(), kit.device)
        self.decoder: LoadedDecoder = load_decoder(weights, linears, progress)
        self.rounds_inputs = linears.rounds_inputs
        prepare(self.operators, self.decoder)
        weight_bytes = weights.num_bytes - linears.saved_bytes
        shape = ModelShape(dtype, table.vocab_size, table.max_positions, table.hidden, table.widest, weight_bytes)
        super().__init__(tuple(layer.shape for layer in layers), shape, kit, provider)
        self.kernels = (*kernels, *linears.kernels())
        self._attention_layers = layers

    def join(self, collectives: Collectives) -> None:
        """Run as a rank of a group, over its part of the weights; see `RankWeights`. Every rank calls it: they choose what sums tensors."""
        kit, options = self._kit, all_reduce_options(self._kit)
        reduce: AllReduce = GroupAllReduce(collectives.name, in_place=True)
        if options is not None:
            reduce, chosen = choose_all_reduce(collectives, self.shape.dtype, kit.device, options, kit.queue)
            self.kernels = (*self.kernels, chosen)
        self.decoder, self.agree = with_all_reduce(self.decoder, reduce), collectives.least

    def use_fastest_attention(self) -> None:
        """Run with the fastest attention provider of this device, the same on all ranks of the group. Raises UnsupportedFamily on all of
        them if they could only use different ones."""
        if not alike([self.provider.name], self.agree):
            raise UnsupportedFamily("ranks can only use different attention providers")
        kit, layers, dtype = self._kit, self._attention_layers, self.shape.dtype
        choices = list(kit.attention())
        while choices[0].name != self.provider.name:
            choices.pop(0)
        choices[0] = self.provider
        refusal = partial(attention_refusal, layers=layers, dtype=dtype, kit=kit)
        self.provider, told = fastest_attention(kit, layers, dtype, choices, refusal, self.agree)
        _log.info("attention: %s", "; ".join([self.provider.name, *told]))
        self.kernels = tuple(
            Kernel("attention", self.provider.name, "; ".join(filter(None, [kernel.reason, *told])))
            if kernel.part == "attention"
            else kernel
            for kernel in self.kernels
        )

    def hidden(self, step: StepMetadata, keep: Tensor | None) -> Tensor:
        """Hidden states [kept, hidden] of a step's flat tokens `keep`, or of all; see `DecoderForward`."""
        return self._decoder_forward().hidden(step, keep)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [tokens, vocabulary] of hidden states [tokens, hidden]."""
        return self._decoder_forward().logits(hidden)

    @property
    def embedding(self) -> Tensor:
        """See `KeepsTokens`."""
        return self.decoder.embedding

    def _decoder_forward(self) -> DecoderForward[StepMetadata]:
        return DecoderForward(self.decoder, self.operators, self.provider, self._cache_in_use().layers)


def prepare(operators: Operators, decoder: LoadedDecoder) -> None:
    """Compile what experts, routers in float32 and latent attention need; those of all layers have the same sizes."""
    mlp = next((layer.mlp for layer in decoder.layers if isinstance(layer.mlp, LoadedExperts)), None)
    if mlp is not None:
        operators.prepare_experts(mlp.experts)
    heads = decoder.layers[0].heads
    if isinstance(heads, LatentHeads):
        operators.prepare_latents(heads, mlp.router if mlp is not None and isinstance(mlp.router, Tensor) else None)


def choose_parts(
    table: DecoderTable, dtype: torch.dtype, kit: DeviceKit, operators: Sequence[Operators]
) -> tuple[Operators, AttentionProvider, tuple[Kernel, ...]]:
    """The first of `operators` and of the kit's attention providers that support a table, and what was chosen. Raises UnsupportedFamily."""
    layers = attention_layers(table, device=kit.device)
    chosen, why = _choose("operators", operators, lambda choice: _operators_refusal(choice, table, dtype, kit))
    provider, why_attention = _choose("attention", kit.attention(), lambda choice: attention_refusal(choice, layers, dtype, kit))
    return (
        chosen,
        provider,
        (
            Kernel("step", "table", f"fused decoder for {table.model_type}"),
            Kernel("operators", chosen.name, why),
            Kernel("attention", provider.name, why_attention),
        ),
    )


def _operators_refusal(choice: Operators, table: DecoderTable, dtype: torch.dtype, kit: DeviceKit) -> str:
    reason = choice.refusal(dtype)
    return reason or attempt(lambda: choice.self_check(table, dtype, kit.device))


def _choose(kind: str, choices: Sequence[_Choice], refusal: Callable[[_Choice], str]) -> tuple[_Choice, str]:
    """The first choice that is supported, and why the earlier ones are not. Raises UnsupportedFamily."""
    choice, rejected = first_supported(choices, refusal)
    reasons = "; ".join(rejected)
    if choice is None:
        raise UnsupportedFamily(f"no {kind}: {reasons}")
    return choice, reasons
