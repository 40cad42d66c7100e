"""RoPE and its scaling: the frequencies of a config.

Formulas: RoFormer (https://arxiv.org/abs/2104.09864), YaRN (https://arxiv.org/abs/2309.00071), and for `llama3` Meta's llama-models,
`apply_scaling` in models/llama3/model.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from tgi_core.engine.decoder.unsupported import UnsupportedFamily


@dataclass(frozen=True, slots=True)
class Rotary:
    """The first `size` elements of a head are rotated, pair i by position · `frequencies[i]` (float32 values), and multiplied by
    `scale`."""

    size: int
    frequencies: tuple[float, ...]
    scale: float = 1.0


def read_rotary(config: dict[str, Any], head_size: int, base: float) -> Rotary:
    """Read a config, as transformers 5 (`rope_parameters`) or 4 (`rope_theta`, `rope_scaling`) writes it. Raises UnsupportedFamily."""
    scaling = rope_scaling(config)
    kind = _kind(scaling)
    base = _number(scaling, "rope_theta", _number(config, "rope_theta", base))
    share = _number(scaling, "partial_rotary_factor", _number(config, "partial_rotary_factor", 1.0))
    size = int(head_size * share)
    if not 0 < size <= head_size or size % 2:
        raise UnsupportedFamily(f"it rotates {size} of the {head_size} elements of a head")
    # In float32, as transformers computes them: token-exact output needs the same bits.
    frequencies = 1.0 / (base ** (torch.arange(0, size, 2, dtype=torch.int64).float() / size))
    scale = 1.0
    if kind == "linear":
        frequencies = frequencies / _number(scaling, "factor")
    elif kind == "llama3":
        frequencies = _llama3(frequencies, scaling)
    elif kind == "yarn":
        frequencies, scale = _yarn(base ** (torch.arange(0, size, 2).float() / size), scaling, base), _yarn_scale(scaling)
    elif kind == "dynamic" and "original_max_position_embeddings" not in scaling:
        pass  # changes nothing up to max_position_embeddings, where rows end
    elif kind != "default":
        raise UnsupportedFamily(f"its rotary positions are {str(kind)[:40]!r}")
    return Rotary(size, tuple(frequencies.tolist()), scale)


def rope_scaling(config: dict[str, Any]) -> dict[str, Any]:
    """The rotary parameters of a config. Raises UnsupportedFamily."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise UnsupportedFamily("its rotary parameters are not an object")
    return scaling


def score_scale(config: dict[str, Any]) -> float:
    """What DeepSeek's models multiply scores by besides: with `mscale_all_dim`, more for longer contexts. Raises UnsupportedFamily."""
    scaling = rope_scaling(config)
    if _kind(scaling) == "default" or not scaling.get("mscale_all_dim"):
        return 1.0
    return _mscale(_number(scaling, "factor", 1.0), _number(scaling, "mscale_all_dim")) ** 2


def _kind(scaling: dict[str, Any]) -> Any:
    return scaling.get("rope_type") or scaling.get("type") or "default"


def _mscale(factor: float, weight: float) -> float:
    """YaRN's scale of attention for a context that is `factor` times as long."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _llama3(frequencies: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    """Stretch long wavelengths, keep short ones, and interpolate in between."""
    factor, low, high, trained = (
        _number(scaling, name) for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    wavelength = 2 * math.pi / frequencies
    stretched = torch.where(wavelength > trained / low, frequencies / factor, frequencies)
    share = (trained / wavelength - low) / (high - low)
    smooth = (1 - share) * stretched / factor + share * stretched
    between = ~(wavelength < trained / high) * ~(wavelength > trained / low)
    return torch.where(between, smooth, stretched)


def _yarn(wavelengths: torch.Tensor, scaling: dict[str, Any], base: float) -> torch.Tensor:
    """Stretch wavelengths (in radians) of which the trained context holds few, keep those of which it holds many, and interpolate."""
    pairs, trained, factor = len(wavelengths), _number(scaling, "original_max_position_embeddings"), _number(scaling, "factor")

    def pair_of(turns: float) -> float:
        """The pair that turns so often in the trained context."""
        return 2 * pairs * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_of(_number(scaling, "beta_fast", 32.0)), pair_of(_number(scaling, "beta_slow", 1.0))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    ramp = (torch.arange(pairs, dtype=torch.float32) - low) / (high - low if high != low else 0.001)
    kept = 1 - torch.clamp(ramp, 0, 1)
    return 1.0 / (factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept


def _yarn_scale(scaling: dict[str, Any]) -> float:
    """What queries and keys are multiplied by: `attention_factor`, or the ratio that `mscale` and `mscale_all_dim` stand for."""
    factor, (own, every) = _number(scaling, "factor"), (scaling.get(name) for name in ("mscale", "mscale_all_dim"))
    ratio = _mscale(factor, 1.0)
    if own and every:
        ratio = _mscale(factor, _number(scaling, "mscale")) / _mscale(factor, _number(scaling, "mscale_all_dim"))
    return _number(scaling, "attention_factor", ratio)


def _number(values: dict[str, Any], name: str, default: float | None = None) -> float:
    value = values.get(name)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise UnsupportedFamily(f"its rotary parameter {name} is {str(value)[:40]}")
    return float(value)
