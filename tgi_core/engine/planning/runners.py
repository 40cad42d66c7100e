"""Runners and kits of models without weights: they promise limits and run nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from torch import Tensor

from tgi_core.backend import Capacity, Feature, Kernel, Memory, WarmupPlan
from tgi_core.engine.attention.cache import LayerShape
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.paged_runner import PagedRunner
from tgi_core.engine.state_memory import plan_states


class PlannedKit:
    """A kit that reports the memory that would be left after loading the weights."""

    def __init__(self, kit: DeviceKit, free_bytes: int | None) -> None:
        """`free_bytes` is the memory for weights and cache; None asks the device."""
        self._kit, self._given = kit, free_bytes
        self.taken = 0
        """Bytes that the weights would take."""

    @classmethod
    def of(cls, kit: DeviceKit, free_bytes: int | None, taken: int = 0) -> DeviceKit:
        """Create it, typed as a kit."""
        planned = cls(kit, free_bytes)
        planned.taken = taken
        return cast(DeviceKit, planned)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kit, name)

    def free_bytes(self) -> int:
        """Bytes for the cache."""
        return max(0, (self._kit.free_bytes() if self._given is None else self._given) - self.taken)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The part of an attention provider that a runner needs to promise limits."""

    block_sizes: tuple[int, ...]


class PlannedRunner(PagedRunner):
    """A runner over a paged cache that has no weights."""

    def __init__(
        self,
        layers: Sequence[LayerShape],
        shape: ModelShape,
        kit: DeviceKit,
        block_sizes: tuple[int, ...],
        kernels: tuple[Kernel, ...],
        features: frozenset[Feature] = PagedRunner.features,
        spare_blocks: int = PagedRunner.spare_blocks,
        row_state_bytes: int = 0,
    ) -> None:
        """`row_state_bytes` is the size of a row's states, if the model has any."""
        super().__init__(tuple(layers), shape, kit, cast(AttentionProvider, _Blocks(block_sizes)))
        self.kernels, self.features, self.spare_blocks = kernels, features, spare_blocks
        self._row_state_bytes, self.stateful = row_state_bytes, row_state_bytes > 0

    def hold(self, num_bytes: int) -> None:
        """Take memory for weights besides the model's."""
        cast(PlannedKit, self._kit).taken += num_bytes

    def reserve(self, plan: WarmupPlan, shares: tuple[Memory, ...] | None = None) -> Capacity:
        """Promise limits, and allocate nothing. Raises OutOfMemory."""
        return self.promise(plan, shares)

    def promise(self, plan: WarmupPlan, shares: tuple[Memory, ...] | None = None, beside_bytes: int = 0) -> Capacity:
        """See `PagedRunner.promise` and `StateRunner.promise`."""
        if not self._row_state_bytes:
            return super().promise(plan, shares, beside_bytes)

        def paged(plan: WarmupPlan, state_bytes: int) -> Capacity:
            return super(PlannedRunner, self).promise(plan, shares, beside_bytes + state_bytes)

        return plan_states(plan, self.shape, self._kit, self._row_state_bytes, paged if self.layers else None)

    def hidden(self, step: StepMetadata, keep: Tensor | None) -> NoReturn:
        """There are no weights."""
        raise RuntimeError("a planned model runs no step")

    def logits(self, hidden: Tensor) -> NoReturn:
        """There are no weights."""
        raise RuntimeError("a planned model runs no step")
