"""Attention divided among ranks where a model's plan leaves it whole.

Some plans gather queries, keys and values on every rank (Phi-3, whose own code splits them; OLMo 2, which normalizes them
together), and let the projection after attention read a part of its input. A rank then need not compute or cache the heads that its part
does not read: their outputs are zeros. The self-check of the runner makes sure that nothing else reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from tgi_core.engine.attention.interface import HEAD_SHARD, AttentionImpl, AttentionParameters


@dataclass(frozen=True, slots=True)
class HeadShard:
    """The heads of rank `rank` of `world`; the value of the attribute `HEAD_SHARD` of an attention module."""

    rank: int
    world: int

    def attend(
        self, impl: AttentionImpl, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, parameters: AttentionParameters
    ) -> Tensor:
        """One layer with the arguments of `AttentionImpl` over all heads: this rank's heads, zeros for the others."""
        heads, kv_heads = query.shape[0], key.shape[0]
        if heads % self.world or (kv_heads % self.world and self.world % kv_heads):
            return impl.attend(module, query, key, value, parameters)
        start, end = self._range(heads)
        first, last = self._range(kv_heads)
        if parameters.sinks is not None:
            parameters = replace(parameters, sinks=parameters.sinks[start:end])
        if parameters.bias is not None:
            parameters = replace(parameters, bias=parameters.bias.heads(start, end))
        own = impl.attend(module, query[start:end], key[first:last], value[first:last], parameters)
        out = own.new_zeros(own.shape[0], heads, own.shape[2])
        out[:, start:end] = own
        return out

    def _range(self, heads: int) -> tuple[int, int]:
        """This rank's heads; one that it shares with others if there are fewer heads than ranks."""
        start = self.rank * heads // self.world
        return start, max(start + 1, (self.rank + 1) * heads // self.world)


def drop_head_shards(model: nn.Module) -> bool:
    """Compute all heads on every rank, as the plan says; whether that changes anything."""
    shared = [module for module in model.modules() if hasattr(module, HEAD_SHARD)]
    for module in shared:
        delattr(module, HEAD_SHARD)
    return bool(shared)
