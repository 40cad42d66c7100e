"""Runs a model's rows side by side: each in its own call of the model, but token-wise modules for all rows at once.

Each row's call is a coroutine (a greenlet), which pauses where it reaches a token-wise module. Once every row has paused or ended, the
module that comes first in the model computes the concatenated tokens of all rows that wait for it. Rows that took another way, such as
another expert, wait until the others have caught up.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor, nn

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _Ask:
    """What a paused row waits for: the output of the module number `place` for these inputs, [1, tokens, ...] each."""

    place: int
    names: tuple[str | None, ...]
    inputs: tuple[Tensor | None, ...]

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for calls that can be concatenated."""
        return (self.place, self.names, *(each if each is None else (each.shape[2:], each.dtype) for each in self.inputs))


class Lockstep:
    """The token-wise modules of a model, in the order in which a run calls them. Changes their `forward`."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._plain: list[Callable[..., Tensor]] = []
        self._hub: greenlet | None = None
        self._joined: tuple[list[Tensor], Tensor] | None = None
        """The inputs that were concatenated last, and the result."""
        for module in modules:
            self._plain.append(module.forward)
            module.forward = self._meeting(len(self._plain) - 1)

    def run(self, calls: Sequence[Callable[[], _Result]]) -> list[_Result]:
        """Run the model's calls of all rows, and return what each returns."""
        if len(calls) == 1:
            return [calls[0]()]
        self._hub = getcurrent()
        rows = [greenlet(call) for call in calls]
        asks: dict[int, _Ask] = {}
        results: dict[int, _Result] = {}

        def resume(number: int, *given: object) -> None:
            found = rows[number].switch(*given)
            if rows[number].dead:
                results[number] = found
            else:
                asks[number] = found

        try:
            for number, row in enumerate(rows):
                row.gr_context = contextvars.copy_context()
                resume(number)
            while asks:
                first = min(asks.values(), key=lambda ask: ask.place).kind
                numbers = [number for number, ask in asks.items() if ask.kind == first]
                outputs = self._compute([asks.pop(number) for number in numbers])
                for number, output in zip(numbers, outputs, strict=True):
                    resume(number, output)
        finally:
            self._hub = None
            self._joined = None
            for row in rows:
                if not row.dead:
                    row.throw()
        return [results[number] for number in range(len(calls))]

    def _meeting(self, place: int) -> Callable[..., Any]:
        """Stands in for a module's `forward`."""
        plain = self._plain[place]

        def forward(*args: Any, **kwargs: Any) -> Any:
            hub = self._hub
            if hub is None or getcurrent() is hub or call_tokens(args, kwargs) is None:
                return plain(*args, **kwargs)
            return hub.switch(_Ask(place, (None,) * len(args) + tuple(kwargs), (*args, *kwargs.values())))

        return forward

    def _compute(self, asks: list[_Ask]) -> Sequence[Tensor]:
        """The outputs for calls of one kind."""
        inputs = [self._join(each) for each in zip(*(ask.inputs for ask in asks), strict=True)]
        named = list(zip(asks[0].names, inputs, strict=True))
        args = [each for name, each in named if name is None]
        output = self._plain[asks[0].place](*args, **{name: each for name, each in named if name is not None})
        counts = [next(each.shape[1] for each in ask.inputs if each is not None) for ask in asks]
        return output.split(counts, dim=1)

    def _join(self, parts: tuple[Tensor | None, ...]) -> Tensor | None:
        """The tokens of all rows. Modules that read the same input get the same tensor: merged layers recognize it."""
        tensors = [each for each in parts if each is not None]
        if not tensors:
            return None
        if self._joined is None or list(map(id, self._joined[0])) != list(map(id, tensors)):
            self._joined = tensors, torch.cat(tensors, dim=1)
        return self._joined[1]


def call_tokens(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The number of tokens of a call whose arguments are floats [1, tokens, ...], or None; None for any other call."""
    given = [each for each in (*args, *kwargs.values()) if each is not None]
    if not given or not all(isinstance(each, Tensor) and each.is_floating_point() and each.ndim > 2 for each in given):
        return None
    lengths = {tuple(each.shape[:2]) for each in given}
    (batch, tokens), *others = lengths
    return tokens if batch == 1 and not others else None
