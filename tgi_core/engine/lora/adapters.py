"""All adapters of one session, on one model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby

import torch
from torch import nn
from transformers import PreTrainedModel

from tgi_core.backend import InvalidModel
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.lora.files import AdapterFile
from tgi_core.engine.lora.layers import LinearWithLora, LoraKernel, LoraKernelFactory, RunningStep, Segment, TorchLoraKernel
from tgi_core.engine.lora.placing import place
from tgi_core.engine.lora.weights import LoraWeights, adapters_to_check, read_lora_weights
from tgi_core.engine.models.linear_layers import linear_sizes


class Adapters:
    """Adapters by name, read into memory and matched with the modules of a model. Without any, all methods do nothing."""

    def __init__(self, model: PreTrainedModel, files: Sequence[AdapterFile], dtype: torch.dtype, device: torch.device) -> None:
        """`dtype` is the adapters' own, in memory and in computation. Raises InvalidModel for an adapter that does not fit the model."""
        self.names = tuple(file.name for file in files)
        self.partial: set[str] = set()
        """Layers that get only some of a step's tokens; see `watched`."""
        self._files = {file.name: file for file in files}
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self._step = RunningStep()
        found: dict[str, dict[int, LoraWeights]] = {}
        for number, file in enumerate(files):
            placed = place(model, file)
            for module, weights in zip(placed, read_lora_weights(file, placed.values(), dtype, device), strict=True):
                found.setdefault(module, {})[number] = weights
        self._targets = {
            name: frozenset(module for module in found if number in found[module]) for number, name in enumerate(self.names)
        }
        self._plain = {module: TorchLoraKernel(weights) for module, weights in found.items()}
        self._kernels: dict[str, LoraKernel] = dict(self._plain)

    @property
    def num_bytes(self) -> int:
        """Bytes of the matrices."""
        return sum(kernel.num_bytes for kernel in self._kernels.values())

    def pack(self, factory: LoraKernelFactory) -> None:
        """Use a device's kernels from here on; until then torch computes the adapters, as the reference of the self-check."""
        self._kernels = {module: factory(kernel.weights) for module, kernel in self._plain.items()}
        self._plain.clear()

    def install(self, model: nn.Module) -> None:
        """Wrap the target layers, or whatever has replaced them."""
        for name, kernel in self._kernels.items():
            model.set_submodule(name, LinearWithLora(model.get_submodule(name), kernel, self._step))

    def remove(self, model: nn.Module) -> None:
        """Undo `install`."""
        for name in self._kernels:
            wrapper = model.get_submodule(name)
            if isinstance(wrapper, LinearWithLora):
                model.set_submodule(name, wrapper.base)

    @contextmanager
    def whole(self, adapter: str | None) -> Iterator[None]:
        """Apply one adapter to all tokens of calls inside."""
        self._step.segments = () if adapter is None else ((self._numbers[adapter], 0, None),)
        try:
            yield
        finally:
            self._step.segments = ()

    @contextmanager
    def rows(self, step: StepMetadata) -> Iterator[None]:
        """Apply each row's adapter to this step, which runs inside."""
        self._step.segments = self._segments(step) if self.names else ()
        try:
            yield
        finally:
            self._step.segments = ()

    def arranged(self, row_inputs: Sequence[RowInput]) -> Sequence[RowInput]:
        """The works sorted by adapter, those without one first, so that segments are few; unchanged if no row has an adapter."""
        if not self.names or all(row_input.row.request.adapter is None for row_input in row_inputs):
            return row_inputs
        return sorted(row_inputs, key=lambda row_input: self._number(row_input))

    def _number(self, row_input: RowInput) -> int:
        adapter = row_input.row.request.adapter
        return -1 if adapter is None else self._numbers[adapter]

    def _segments(self, step: StepMetadata) -> tuple[Segment, ...]:
        places = groupby(enumerate(step.order), key=lambda item: self._number(item[1]))
        runs = [(number, [place for place, _ in group]) for number, group in places]
        return tuple(
            (number, int(step.cu_seqlens[run[0]]), int(step.cu_seqlens[run[-1] + 1])) for number, run in runs if number >= 0
        )

    def inside(self, modules: Iterable[str]) -> str:
        """A layer that an adapter changes inside one of these modules; empty if there is none."""
        return next((name for name in self._kernels for module in modules if f"{name}.".startswith(f"{module}.")), "")

    def to_check(self) -> list[str]:
        """Adapters to run in the self-check; see `adapters_to_check`."""
        return adapters_to_check(self._targets)

    @contextmanager
    def watched(self, model: nn.Module, tokens: int) -> Iterator[None]:
        """Run the model over `tokens` tokens inside: afterwards `partial` names the layers that got only some of them, such as experts.

        Raises InvalidModel if a target layer is not called at all in a model without experts: such a model uses its weight in some other
        way, and the adapter would have no effect.
        """
        called: set[str] = set()

        def watch(name: str, inputs: int) -> object:
            def hook(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
                called.add(name)
                if args[0].numel() != tokens * inputs:
                    self.partial.add(name)

            return hook

        hooks = []
        for name in self._kernels:
            module = model.get_submodule(name)
            inputs, _ = linear_sizes(module) or (0, 0)
            hooks.append(module.register_forward_pre_hook(watch(name, inputs)))  # type: ignore[arg-type]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        idle = [name for name in self._kernels if name not in called]
        if idle and not self.partial:
            owner = next(name for name, modules in self._targets.items() if idle[0] in modules)
            raise InvalidModel(f"adapter {owner}: {self._files[owner].file}: this model does not call {idle[0]!r} as a layer")
