"""The ragged engine for models with state layers: rows go through these as a batch, and through all other layers flattened."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tgi_core.backend import Capacity, Feature, Memory, WarmupPlan
from tgi_core.engine.attention.cache import LayerShape
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.comparison import Agree
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.lora.adapters import Adapters
from tgi_core.engine.models.calling import ModelCall
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.paged_runner import CANNOT_GO_BACK
from tgi_core.engine.ragged import RaggedRunner
from tgi_core.engine.state_memory import plan_states


class StateRunner(RaggedRunner):
    """Runs a model with state layers. A row's last block table names the slot of its states; the others, if the model has attention
    layers, have those layers' blocks."""

    features = frozenset({Feature.CHUNKED_PREFILL})
    stateful = True
    enqueued = False

    def __init__(
        self,
        call: ModelCall,
        layers: tuple[LayerShape, ...],
        shape: ModelShape,
        kit: DeviceKit,
        provider: AttentionProvider,
        adapters: Adapters,
        agree: Agree = int,
    ) -> None:
        super().__init__(call, layers, shape, kit, provider, adapters, agree)
        if call.states is None:
            raise ValueError("the model has no state layers")
        self._states = call.states
        if not layers:
            self.block_sizes = (shape.max_positions,)

    def promise(self, plan: WarmupPlan, shares: tuple[Memory, ...] | None = None, beside_bytes: int = 0) -> Capacity:
        """The limits that `reserve` would promise now. Raises OutOfMemory."""

        def paged(plan: WarmupPlan, state_bytes: int) -> Capacity:
            return super(StateRunner, self).promise(plan, shares, beside_bytes + state_bytes)

        row_bytes = self._states.row_bytes
        return plan_states(plan, self.shape, self._kit, row_bytes, paged if self.layers else None, self.agree)

    def allocate(self, capacity: Capacity) -> None:
        """Allocate the cache and the states of a promise."""
        super().allocate(capacity)
        self._states.allocate(capacity.groups[-1].num_blocks, self._kit.device)

    def use_probe_cache(self) -> None:
        """Use a cache of two blocks and the states of two rows, for the self-check."""
        super().use_probe_cache()
        self._states.allocate(2, self._kit.device)

    def keep_hidden(self) -> str:
        """Why there is no speculator: see `KeepsHidden`."""
        return CANNOT_GO_BACK

    def release(self) -> None:
        """Free the cache and the states."""
        super().release()
        self._states.release()

    def _run(self, step: StepMetadata, keep: Tensor | None, run: Callable[[Tensor, Tensor, Tensor | None], Tensor]) -> Tensor:
        with self._states.running(step.order, self._kit.device):
            return super()._run(step, keep, run)
