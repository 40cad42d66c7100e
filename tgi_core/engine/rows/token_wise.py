"""Finds the modules of a model that compute each token by itself: linear layers, norms, whole feed-forward blocks and experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tgi_core.engine.comparison import MODEL_ERRORS, Agree, relative_difference
from tgi_core.engine.rows.lockstep import call_tokens


@dataclass(frozen=True, slots=True)
class _Call:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor


def token_wise_modules(model: nn.Module, run: Callable[[], object], agree: Agree) -> list[nn.Module]:
    """The outermost such modules that `run` calls, in call order, the same on every rank: each gives every token alone what it gives
    it among others. `run` runs the model over a few tokens."""
    with torch.inference_mode():
        with _watched(model) as calls:
            run()
        found = set(_outermost(model, "", calls, agree))
    return [model.get_submodule(name) for name in calls if name in found]


@contextmanager
def _watched(model: nn.Module) -> Iterator[dict[str, _Call]]:
    """The first call of each module inside whose inputs and output are floats [1, tokens, ...]."""
    calls: dict[str, _Call] = {}

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            tokens = call_tokens(args, kwargs)
            if tokens is not None and isinstance(output, Tensor) and output.shape[:2] == (1, tokens):
                calls.setdefault(name, _Call(args, kwargs, output))

        return hook

    modules = [(name, module) for name, module in model.named_modules() if next(module.parameters(), None) is not None]
    hooks = [module.register_forward_hook(watch(name), with_kwargs=True) for name, module in modules]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _outermost(module: nn.Module, path: str, calls: dict[str, _Call], agree: Agree) -> Iterator[str]:
    call = calls.get(path)
    if call is not None and agree(int(_is_token_wise(module, call))):
        yield path
        return
    for name, child in module.named_children():
        yield from _outermost(child, f"{path}.{name}".removeprefix("."), calls, agree)


def _is_token_wise(module: nn.Module, call: _Call) -> bool:
    """Whether tokens run alone, last first, have the outputs that they have together."""

    def at(place: int, value: Any) -> Any:
        return value[:, place : place + 1] if isinstance(value, Tensor) else value

    tokens = call.output.shape[1]
    outputs = []
    try:
        for place in reversed(range(tokens)):
            args, kwargs = [at(place, each) for each in call.args], {name: at(place, each) for name, each in call.kwargs.items()}
            outputs.append(module(*args, **kwargs))
    except MODEL_ERRORS:
        return False
    limit = 1e-4 if call.output.dtype is torch.float32 else 0.03
    alone = torch.cat(outputs[::-1], dim=1)
    return alone.shape == call.output.shape and relative_difference(alone, call.output) <= limit
