"""All adapters of one session, on one model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby

import torch
from torch import nn
from transformers import PreTrainedModel

from tgi_core.backend import InvalidModel
from tgi_core.backend.ledger import Work
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.lora.files import AdapterFile
from tgi_core.engine.lora.layers import AdaptedLinear, LowRankSums, RunningStep, Segment, SumsFactory, TorchSums
from tgi_core.engine.lora.placing import place
from tgi_core.engine.lora.weights import Products, probes, read_products
from tgi_core.engine.models.linear_layers import linear_sizes


class Adapters:
    """Adapters by name, read into memory and placed in the modules of a model. With none of them everything here does nothing."""

    def __init__(self, model: PreTrainedModel, files: Sequence[AdapterFile], dtype: torch.dtype, device: torch.device) -> None:
        """`dtype` is what the adapters are kept and computed in. Raises InvalidModel for one that does not fit the model."""
        self.names = tuple(file.name for file in files)
        self.partial: set[str] = set()
        """Layers that get some of a step's tokens only; see `watched`."""
        self._files = {file.name: file for file in files}
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self._step = RunningStep()
        found: dict[str, dict[int, Products]] = {}
        for number, file in enumerate(files):
            placed = place(model, file)
            for module, products in zip(placed, read_products(file, placed.values(), dtype, device), strict=True):
                found.setdefault(module, {})[number] = products
        self._changed = {
            name: frozenset(module for module in found if number in found[module]) for number, name in enumerate(self.names)
        }
        self._plain = {module: TorchSums(products) for module, products in found.items()}
        self._sums: dict[str, LowRankSums] = dict(self._plain)

    @property
    def num_bytes(self) -> int:
        """What the matrices take."""
        return sum(sums.num_bytes for sums in self._sums.values())

    def pack(self, factory: SumsFactory) -> None:
        """Have a device add them in its own way from here on: what is proven was computed by torch before."""
        self._sums = {module: factory(sums.products) for module, sums in self._plain.items()}
        self._plain.clear()

    def install(self, model: nn.Module) -> None:
        """Wrap the layers that adapters change, whatever they have been replaced by."""
        for name, sums in self._sums.items():
            model.set_submodule(name, AdaptedLinear(model.get_submodule(name), sums, self._step))

    def remove(self, model: nn.Module) -> None:
        """Undo `install`."""
        for name in self._sums:
            wrapper = model.get_submodule(name)
            if isinstance(wrapper, AdaptedLinear):
                model.set_submodule(name, wrapper.base)

    @contextmanager
    def whole(self, adapter: str | None) -> Iterator[None]:
        """Everything that runs inside is one adapter's."""
        self._step.segments = () if adapter is None else ((self._numbers[adapter], 0, None),)
        try:
            yield
        finally:
            self._step.segments = ()

    @contextmanager
    def rows(self, step: StepMetadata) -> Iterator[None]:
        """What runs inside is this step."""
        self._step.segments = self._segments(step) if self.names else ()
        try:
            yield
        finally:
            self._step.segments = ()

    def arranged(self, works: Sequence[Work]) -> Sequence[Work]:
        """Rows of one adapter side by side, those without any first: few segments, and nothing moves where there are none."""
        if not self.names or all(work.row.request.adapter is None for work in works):
            return works
        return sorted(works, key=lambda work: self._number(work))

    def _number(self, work: Work) -> int:
        adapter = work.row.request.adapter
        return -1 if adapter is None else self._numbers[adapter]

    def _segments(self, step: StepMetadata) -> tuple[Segment, ...]:
        places = groupby(enumerate(step.order), key=lambda item: self._number(item[1]))
        runs = [(number, [place for place, _ in group]) for number, group in places]
        return tuple(
            (number, int(step.cu_seqlens[run[0]]), int(step.cu_seqlens[run[-1] + 1])) for number, run in runs if number >= 0
        )

    def probes(self) -> list[str]:
        """Adapters to prove a runner with: few, and among them every module that any adapter changes."""
        return probes(self._changed)

    @contextmanager
    def watched(self, model: nn.Module, tokens: int) -> Iterator[None]:
        """Run the model over so many tokens inside: `partial` then names the layers that get only some of them, as experts do.

        Raises InvalidModel for a layer that is not called at all where there are no experts: its weight is used some other way, and
        its adapters would do nothing.
        """
        called: set[str] = set()

        def watch(name: str, inputs: int) -> object:
            def hook(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
                called.add(name)
                if args[0].numel() != tokens * inputs:
                    self.partial.add(name)

            return hook

        hooks = []
        for name in self._sums:
            module = model.get_submodule(name)
            inputs, _ = linear_sizes(module) or (0, 0)
            hooks.append(module.register_forward_pre_hook(watch(name, inputs)))  # type: ignore[arg-type]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        idle = [name for name in self._sums if name not in called]
        if idle and not self.partial:
            owner = next(name for name, modules in self._changed.items() if idle[0] in modules)
            raise InvalidModel(f"adapter {owner}: {self._files[owner].file}: this model does not call {idle[0]!r} as a layer")
