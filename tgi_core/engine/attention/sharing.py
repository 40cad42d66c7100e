"""Attention divided among ranks where a model's plan leaves it whole.

Some plans gather queries, keys and values on every rank (Phi-3, whose own code takes them apart; OLMo 2, which normalizes them
together), and let the projection behind attention read a part of its input. Then a rank need not compute, nor keep in its cache, the
heads that its part does not read: they are answered with zeros. Choosing a runner proves that nothing else reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from tgi_core.engine.attention.interface import SHARE, Attending, AttentionParameters


@dataclass(frozen=True, slots=True)
class HeadShare:
    """The heads of rank `rank` of `world`; the value of the attribute `SHARE` of an attention module."""

    rank: int
    world: int

    def attend(
        self, who: Attending, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, parameters: AttentionParameters
    ) -> Tensor:
        """One layer with the arguments of `Attending` over all heads: this rank's heads, zeros for the others."""
        heads, kv_heads = query.shape[0], key.shape[0]
        if heads % self.world or (kv_heads % self.world and self.world % kv_heads):
            return who.attend(module, query, key, value, parameters)
        start, end = self._range(heads)
        first, last = self._range(kv_heads)
        if parameters.sinks is not None:
            parameters = replace(parameters, sinks=parameters.sinks[start:end])
        own = who.attend(module, query[start:end], key[first:last], value[first:last], parameters)
        out = own.new_zeros(own.shape[0], heads, own.shape[2])
        out[:, start:end] = own
        return out

    def _range(self, heads: int) -> tuple[int, int]:
        """This rank's heads; one that it shares with others where there are fewer than ranks."""
        start = self.rank * heads // self.world
        return start, max(start + 1, (self.rank + 1) * heads // self.world)


def forget_shares(model: nn.Module) -> bool:
    """Let all ranks compute all heads where the plan says so; whether that changes anything."""
    shared = [module for module in model.modules() if hasattr(module, SHARE)]
    for module in shared:
        delattr(module, SHARE)
    return bool(shared)
