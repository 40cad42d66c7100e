"""The selective scan of Mamba (Gu and Dao 2023, algorithm 2), started from a state: transformers' version always starts from zero."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK = 64
"""Tokens whose states exist at a time."""

NextState = Callable[[], Tensor | None]
"""The state [rows, channels, width] from which the next scan starts; None for zeros."""


def selective_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs [rows, channels, tokens] and the last state [rows, channels, width] of a scan from `state`.

    `hidden_states`, `dt` and `z` are [rows, channels, tokens], `A` [channels, width], `B` and `C` [rows, width, tokens]; the names are
    those of mamba_ssm's `selective_scan_fn`.
    """
    rows, channels, tokens = hidden_states.shape
    if delta_bias is not None:
        dt = dt + delta_bias.to(dt.dtype)[:, None]
    dt = (F.softplus(dt) if delta_softplus else dt).float()
    if state is None:
        state = torch.zeros(rows, channels, A.shape[-1], dtype=torch.float32, device=dt.device)
    state, inputs, outputs = state.float(), dt * hidden_states.float(), []
    for start in range(0, tokens, CHUNK):
        chunk = slice(start, start + CHUNK)
        decay = torch.exp(dt[..., chunk].permute(2, 0, 1)[..., None] * A)
        states = inputs[..., chunk].permute(2, 0, 1)[..., None] * B[..., chunk].float().permute(2, 0, 1)[:, :, None]
        for place in range(len(states)):
            state = torch.addcmul(states[place], decay[place], state, out=states[place])
        read = torch.matmul(states.to(hidden_states.dtype), C[..., chunk].permute(2, 0, 1)[..., None])
        outputs.append(read[..., 0].permute(1, 2, 0))
    out = torch.cat(outputs, dim=-1)
    if D is not None:
        out = out + hidden_states * D[:, None]
    return (out if z is None else out * F.silu(z)), state


def starting_from(module: nn.Module, next_state: NextState) -> Callable[..., Any] | None:
    """The module's forward with each scan starting from `next_state`; None if it calls no scan that always starts from zero."""
    plain = inspect.unwrap(type(module).forward)
    names = [name for name in plain.__code__.co_names if _starts_from_zero(plain.__globals__.get(name))]
    if not names:
        return None

    def scan(
        *args: Any, return_last_state: bool = False, use_mambapy: bool = False, use_associative_scan: bool = False, **given: Any
    ) -> Any:
        out, last = selective_scan(*args, **given | {"state": next_state()})
        return (out, last) if return_last_state else out

    own = FunctionType(
        plain.__code__, plain.__globals__ | dict.fromkeys(names, scan), plain.__name__, plain.__defaults__, plain.__closure__
    )
    own.__kwdefaults__ = plain.__kwdefaults__
    return MethodType(own, module)


def _starts_from_zero(function: object) -> bool:
    if not callable(function) or isinstance(function, type):
        return False
    try:
        takes = set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return False
    return {"hidden_states", "dt", "A", "B", "C", "return_last_state"} <= takes and not any("initial" in name for name in takes)
