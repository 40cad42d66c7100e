"""Tensors without elements that stand for a layer's keys, scores, weights and values while a model's code runs.

A model that calls no attention function multiplies queries by the keys that its cache returns, scales the products, adds biases and
masks, takes the softmax, and multiplies it by the values. Where the cache returns these tensors, nothing of it is computed: they record
what is done to them, and the product with the values is asked of this engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor

from tgi_core.engine.attention.interface import NotRagged

HIDDEN = -1e4
"""Biases below it hide a position: masks add the least number of the dtype, or one such as this."""


class Role(Enum):
    """What a tensor stands for."""

    KEYS = auto()
    VALUES = auto()
    SCORES = auto()
    """Products of queries and keys."""
    WEIGHTS = auto()
    """The softmax of scores."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores before the softmax are `scale` · query · key + `bias`: [heads, keys] of the last query, or one for all heads. Operands on the
    meta device count as zeros. None: not recorded."""

    query: Tensor
    scale: float = 1.0
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One layer's attention in one run: the keys and values of the run's `tokens` tokens, [1, kv_heads, tokens, width] each, which are the
    last of `positions`.

    `attend` computes the attention of these scores, [tokens, heads, width]. `reads` says that scales and biases are to be recorded: it
    waits for the device.
    """

    key: Tensor
    value: Tensor
    tokens: int
    positions: int
    attend: Callable[[LayerCall, Scored], Tensor]
    reads: bool


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a traced tensor stands for, and a tensor of its shape on the meta device."""

    role: Role
    shaped: Tensor
    call: LayerCall
    scored: Scored | None = None


class Traced(Tensor):
    """Stands for a tensor of a layer's attention. Raises NotRagged for an operator that attention does not need."""

    meaning: Meaning

    @staticmethod
    def of(meaning: Meaning) -> Traced:
        """Create it, with shape and dtype of `meaning.shaped` on the device of the run."""
        shaped = meaning.shaped
        made: Traced = Tensor._make_wrapper_subclass(Traced, shaped.shape, dtype=shaped.dtype, device=meaning.call.key.device)
        made.meaning = meaning
        return made

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called by torch for every function of such a tensor."""
        name = func.__name__.strip("_")
        if name in _QUESTIONS:
            return super().__torch_function__(func, types, args, kwargs or {})
        handler = _HANDLERS.get(name)
        found = None if handler is None else handler(func, args, kwargs or {})
        if found is None:
            raise NotRagged(f"its attention calls {name}, which this engine does not read")
        return found

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: object, types: Any, args: tuple[Any, ...] = (), kwargs: dict[Any, Any] | None = None
    ) -> Any:
        """Called where torch would compute with its elements."""
        raise NotRagged(f"its attention computes with keys by {func}, which this engine does not read")


_QUESTIONS = frozenset({"get", "size", "dim", "ndimension", "numel", "is_floating_point", "is_complex", "is_contiguous", "len"})
"""About shape and dtype."""


def keys_and_values(
    key: Tensor, value: Tensor, positions: int, attend: Callable[[LayerCall, Scored], Tensor]
) -> tuple[Traced, Traced]:
    """What a cache returns for the keys and values of new tokens, if it has `positions` positions with them. More than the new ones:
    scales and biases are recorded."""
    tokens = key.shape[2]
    call = LayerCall(key, value, tokens, positions, attend, reads=positions != tokens)

    def traced(role: Role, like: Tensor) -> Traced:
        shaped = torch.empty(*like.shape[:2], positions, like.shape[3], dtype=like.dtype, device="meta")
        return Traced.of(Meaning(role, shaped, call))

    return traced(Role.KEYS, key), traced(Role.VALUES, value)


def _role(value: object) -> Role | None:
    return value.meaning.role if isinstance(value, Traced) else None


def _reshaped(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced | None:
    """Views and copies; scores and weights keep their last dimensions, queries and keys."""
    if not isinstance(args[0], Traced):
        return None
    meaning = args[0].meaning
    shaped = func(meaning.shaped, *args[1:], **kwargs)
    if meaning.role in (Role.SCORES, Role.WEIGHTS) and shaped.shape[-2:] != meaning.shaped.shape[-2:]:
        return None
    return Traced.of(replace(meaning, shaped=shaped))


def _cast(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced | None:
    """Another dtype."""
    if not isinstance(args[0], Traced):
        return None
    meaning, name = args[0].meaning, func.__name__
    given = [*args[1:], *kwargs.values()]
    named = [each.dtype if isinstance(each, Tensor) else each for each in given if isinstance(each, Tensor | torch.dtype)]
    dtype = getattr(torch, name, None) if name in ("float", "half", "bfloat16", "double") else next(iter(named), None)
    return Traced.of(replace(meaning, shaped=meaning.shaped.to(dtype or meaning.shaped.dtype)))


def _same(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced | None:
    """Dropout, which is off."""
    return args[0] if isinstance(args[0], Traced) and not kwargs.get("training") else None


def _floored(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced | None:
    """Scores that are at least as large as the least number that a mask may add."""
    scores, *bounds = (*args, *kwargs.values())
    if _role(scores) is not Role.SCORES or len(bounds) != 1 or "max" in kwargs or isinstance(bounds[0], Traced):
        return None
    unread = not scores.meaning.call.reads or getattr(bounds[0], "is_meta", False)
    return scores if unread or float(bounds[0]) < HIDDEN else None


def _matmul(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Queries by keys, or weights by values."""
    left, right = args
    if _role(right) is Role.KEYS and not isinstance(left, Traced):
        return _scores(left, right)
    if _role(left) is Role.WEIGHTS and _role(right) is Role.VALUES and right.shape[-2] == left.shape[-1]:
        meaning = left.meaning
        return _attended(meaning.call, meaning.scored, meaning.shaped.shape[:-1])
    return None


def _baddbmm(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced | None:
    """A bias plus queries by keys."""
    given = dict(zip(("input", "batch1", "batch2"), args, strict=False)) | kwargs
    bias, query, keys = given["input"], given["batch1"], given["batch2"]
    if _role(keys) is not Role.KEYS or isinstance(query, Traced) or isinstance(bias, Traced):
        return None
    scores = _scaled(_scores(query, keys), given.get("alpha", 1))
    beta = given.get("beta", 1)
    return scores if beta == 0 else _biased(scores, bias * beta)


def _scores(query: Tensor, keys: Traced) -> Traced:
    meaning = keys.meaning
    call, shape = meaning.call, meaning.shaped.shape
    if query.shape[-2:] != (call.tokens, shape[-2]) or shape[-1] != call.positions:
        raise NotRagged("its queries are not multiplied by keys, token by token")
    shaped = torch.empty(*query.shape[:-1], shape[-1], dtype=query.dtype, device="meta")
    bias = torch.zeros(1, shape[-1], device="cpu" if query.is_meta else query.device) if call.reads else None
    return Traced.of(Meaning(Role.SCORES, shaped, call, Scored(query, bias=bias)))


def _scored(scores: Traced) -> Scored:
    return _known(scores.meaning.scored)


def _known(scored: Scored | None) -> Scored:
    if scored is None:
        raise NotRagged("its attention takes something else than products of queries and keys for scores")
    return scored


def _with(scores: Traced, scored: Scored) -> Traced:
    return Traced.of(replace(scores.meaning, scored=scored))


def _add(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced | None:
    """Scores plus a bias or a mask."""
    scores, bias = _sorted(args)
    if _role(scores) is not Role.SCORES or isinstance(bias, Traced) or kwargs.get("alpha", 1) != 1:
        return None
    return _biased(scores, bias)


def _multiply(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced | None:
    """Scores times a number."""
    scores, factor = _sorted(args)
    return None if _role(scores) is not Role.SCORES or isinstance(factor, Traced) else _scaled(scores, factor)


def _divide(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced | None:
    """Scores divided by a number."""
    scores, divisor = args
    if _role(scores) is not Role.SCORES or isinstance(divisor, Traced) or kwargs.get("rounding_mode"):
        return None
    return _scaled(scores, 1 / divisor) if scores.meaning.call.reads else scores


def _sorted(args: tuple[Any, ...]) -> tuple[Any, Any]:
    """The operands of an operator whose order does not matter: a traced one first."""
    left, right = args[:2]
    return (left, right) if isinstance(left, Traced) else (right, left)


def _scaled(scores: Traced, factor: Any) -> Traced:
    scored = _scored(scores)
    if not scores.meaning.call.reads:
        return scores
    if isinstance(factor, Tensor) and factor.numel() > 1:
        raise NotRagged("its scores are scaled by more than one number")
    factor = float(factor)
    bias = None if scored.bias is None else scored.bias * factor
    return _with(scores, replace(scored, scale=scored.scale * factor, bias=bias))


def _biased(scores: Traced, bias: Any) -> Traced:
    scored = _scored(scores)
    # a number changes no softmax
    if not isinstance(bias, Tensor) or not scores.meaning.call.reads:
        return scores
    if scored.bias is None or bias.is_meta:
        return scores
    return _with(scores, replace(scored, bias=scored.bias + _by_head(bias, scores)))


def _by_head(values: Tensor, scores: Traced) -> Tensor:
    """Values for all scores, as [heads, keys]."""
    shape = scores.meaning.shaped.shape
    spread = values.expand(shape).reshape(-1, shape[-1])
    return spread if values.dtype is torch.bool else spread.float()


def _masked_fill(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced | None:
    """Scores with a value where a mask says so."""
    given = dict(zip(("input", "mask", "value"), args, strict=False)) | kwargs
    return _chosen(given["input"], given["mask"], given["value"], False)


def _where(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced | None:
    """Scores where a mask says so, else a value; or the other way round."""
    mask, yes, no = args
    return _chosen(yes, mask, no, True) if isinstance(yes, Traced) else _chosen(no, mask, yes, False)


def _chosen(scores: Any, mask: Any, value: Any, keeps: bool) -> Traced | None:
    """Scores where the mask is `keeps`, else a value."""
    if _role(scores) is not Role.SCORES or isinstance(mask, Traced) or isinstance(value, Traced):
        return None
    scored = _scored(scores)
    if not scores.meaning.call.reads:
        return scores
    if scored.bias is None or mask.is_meta:
        return scores
    where = _by_head(mask, scores)
    hidden = isinstance(value, Tensor) and value.is_meta
    other = torch.as_tensor(-math.inf if hidden else value, dtype=torch.float32, device=where.device)
    return _with(scores, replace(scored, bias=torch.where(where.bool() == keeps, scored.bias, other)))


def _softmax(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced | None:
    """Weights of the keys."""
    scores, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim")
    if _role(scores) is not Role.SCORES or dim not in (-1, scores.dim() - 1):
        return None
    meaning = scores.meaning
    return Traced.of(replace(meaning, role=Role.WEIGHTS, shaped=meaning.shaped.to(kwargs.get("dtype") or meaning.shaped.dtype)))


def _sdpa(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """All of it at once."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = dict(zip(names, args, strict=False)) | kwargs
    query, keys, values, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    if _role(keys) is not Role.KEYS or _role(values) is not Role.VALUES or isinstance(query, Traced):
        return None
    scale = given.get("scale")
    scores = _scaled(_scores(query, keys.transpose(-1, -2)), query.shape[-1] ** -0.5 if scale is None else scale)
    if isinstance(mask, Tensor) and mask.dtype is torch.bool:
        mask = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -math.inf) if scores.meaning.call.reads else None
    scores = _biased(scores, mask)
    return _attended(scores.meaning.call, scores.meaning.scored, query.shape[:-1])


def _attended(call: LayerCall, scored: Scored | None, shape: Sequence[int]) -> Tensor:
    """Weights times values, [*shape, value width]."""
    scored = _known(scored)
    flat = scored.query.reshape(-1, *scored.query.shape[-2:]).to(call.key.dtype)  # a wider one was cast
    out = call.attend(call, replace(scored, query=flat))
    return out.transpose(0, 1).to(call.value.dtype).reshape(*shape, out.shape[-1])


_Handler = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Tensor | None]

_BY_HANDLER: dict[_Handler, str] = {
    _reshaped: "transpose permute view reshape expand unsqueeze squeeze contiguous flatten unflatten swapaxes getitem "
    "repeat_interleave repeat broadcast_to expand_as clone detach",
    _cast: "to float half bfloat16 double type_as",
    _same: "dropout",
    _floored: "clamp clamp_min max maximum",
    _matmul: "matmul bmm",
    _baddbmm: "baddbmm",
    _add: "add radd iadd",
    _multiply: "mul rmul imul multiply",
    _divide: "div truediv itruediv true_divide divide",
    _masked_fill: "masked_fill",
    _where: "where",
    _softmax: "softmax",
    _sdpa: "scaled_dot_product_attention",
}
_HANDLERS = {name: handler for handler, names in _BY_HANDLER.items() for name in names.split()}
