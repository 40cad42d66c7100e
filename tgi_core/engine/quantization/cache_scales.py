"""Scales of an 8-bit KV cache in checkpoints, found by calibration: of the keys and of the values of each layer.

| name, behind the number of the layer | of |
|---|---|
| `self_attn.k_scale`, also `self_attn.attn.k_scale` or `self_attn.k_proj.k_scale`; likewise with `v` | keys; values |
| `self_attn.k_proj.output_scale`, `self_attn.v_proj.output_scale` | keys; values |
| `self_attn.kv_scale` | both |

A key divided by its scale is what an e4m3fn number is to hold. Scales of single heads count as the largest of them: a smaller head loses
nothing, since the codes are floats. Source: vLLM, `maybe_remap_kv_scale_name` in model_executor/model_loader/weight_utils.py, and
compressed-tensors, quantization/lifecycle/initialize.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from tgi_core.backend import InvalidModel
from tgi_core.engine.attention.cache import CacheScales
from tgi_core.engine.quantization.formats.checks import FLOATS
from tgi_core.engine.weights.headers import TensorEntry

_NAME = re.compile(r"(?:^|\.)(\d+)\.(?:\w+\.)*?(?:(kv|k|v)_scale|(k|v)_proj\.output_scale)$")


def is_cache_scale(name: str) -> bool:
    """Whether a tensor has the name of such a scale."""
    return _NAME.search(name) is not None


def check_entries(entries: Iterable[TensorEntry]) -> None:
    """Raise InvalidModel naming file and tensor unless all are floats, one each or one per head."""
    for entry in entries:
        if entry.dtype not in FLOATS or math.prod(entry.shape) < 1 or any(size != 1 for size in entry.shape[1:]):
            raise InvalidModel(
                f"{entry.file}: tensor {entry.name!r} is {entry.dtype} {list(entry.shape)}, not {' or '.join(FLOATS)} [1] or one per head"
            )


def read_scales(entries: Iterable[TensorEntry], read: Callable[[TensorEntry], Tensor]) -> dict[int, CacheScales]:
    """Scales by the number of the layer; `read` returns the values of a tensor. Raises InvalidModel for values that are no scales."""
    found: dict[int, dict[str, float]] = {}
    for entry in entries:
        match, values = _NAME.search(entry.name), read(entry).float()
        if not bool(((values >= torch.finfo(torch.float32).tiny) & (values < math.inf)).all()):
            raise InvalidModel(f"{entry.file}: tensor {entry.name!r} is {float(values.min()):.3g}, not a scale above 0")
        if match is not None:
            parts = ("key", "value") if match[2] == "kv" else ("key" if "k" in (match[2], match[3]) else "value",)
            found.setdefault(int(match[1]), {}).update(dict.fromkeys(parts, float(values.max())))
    return {layer: CacheScales(**scales) for layer, scales in found.items()}
