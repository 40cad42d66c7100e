"""The structures of the native kernels' C interface, as `native/*.h` define them."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from enum import IntEnum

INTERFACE = 16
"""The version that `tgi_interface` must return."""

PARTS = ("input", "norm", "qkv", "rotary", "attention", "output", "gate_up", "down", "head", "sampling", "other")
"""Names of `Part` in pool.h."""


class Panels(IntEnum):
    """How the blocks of a weight are arranged in panels; `Panels` in gemm.h."""

    PLAIN = 0
    PAIRS = 1
    LOW = 2


class Layout(IntEnum):
    """The layout of a panel's elements; `Layout` in layouts.h."""

    DENSE = 0
    BF12 = 1
    CODES4 = 2
    CODES8 = 3
    INT8 = 4
    INT4 = 5
    E4M3 = 6
    LEVELS = 7


class Linear(Structure):
    """A packed weight: its panels in a layout. `columns` counts both members of a pair."""

    _fields_ = (
        ("data", c_void_p),
        ("bias", c_void_p),
        *((name, c_int32) for name in ("layout", "columns", "steps", "unused")),
    )


class UnpackedCodes(Structure):
    """A weight of codes in panels; those to be encoded are first…last-1, whose codes `codes` has."""

    _fields_ = (
        *((name, c_void_p) for name in ("codes", "scales", "zeros", "offsets", "levels")),
        *((name, c_size_t) for name in ("panels", "blocks", "steps", "groups", "group_steps", "first", "last")),
        ("bits", c_int32),
    )


class PackedLora(Structure):
    """An adapter's two matrices for a merged projection's columns from `first` on."""

    _fields_ = (("lora_a", Linear), ("lora_b", Linear), ("first", c_int32), ("unused", c_int32))


class PackedLoras(Structure):
    """One adapter's slices of one merged projection."""

    _fields_ = (("slice", POINTER(PackedLora)), ("slices", c_int32), ("unused", c_int32))


class Segment(Structure):
    """Tokens first…last-1 run under an adapter."""

    _fields_ = tuple((name, c_int32) for name in ("adapter", "first", "last"))


PROJECTIONS = ("qkv", "output", "gate_up", "down")
"""The merged projections that adapters target, in the order of `Projection` in step.h."""


class Layer(Structure):
    """One layer of a decoder."""

    _fields_ = (
        *((name, Linear) for name in ("qkv", "output", "gate_up", "down")),
        *((name, c_void_p) for name in ("attention_norm", "mlp_norm", "query_norm", "key_norm", "cache")),
        *((name, c_int32) for name in ("window", "rotary", "cache_layers", "windowed")),
    )


class Model(Structure):
    """A decoder."""

    _fields_ = (
        *(
            (name, c_int32)
            for name in ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_size", "rotary", "block_size")
        ),
        *(
            (name, c_float)
            for name in (
                "epsilon",
                "embedding_scale",
                "attention_scale",
                "residual_scale",
                "logit_scale",
                "rotary_scale",
                "softcap",
            )
        ),
        ("bfloat16", c_int32),
        ("fused_rope", c_int32),
        ("layer", POINTER(Layer)),
        ("final_norm", c_void_p),
        ("frequencies", c_void_p),
        ("embedding", c_void_p),
        ("embedding_start", c_int64),
        ("embedding_file", c_int32),
        ("head", Linear),
        ("adapters", POINTER(PackedLoras)),
        ("cache_dtype", c_int32),
        ("ranks", c_int32),
    )


class Step(Structure):
    """One step."""

    _fields_ = (
        *((name, c_int32) for name in ("tokens", "rows", "wanted", "table_stride")),
        *((name, c_void_p) for name in ("ids", "row", "table", "wanted_tokens", "logits")),
        ("segment", POINTER(Segment)),
        ("segments", c_int32),
        ("state_layers", c_int32),
        ("state_layer", c_void_p),
        ("states", c_void_p),
        ("window_table", c_void_p),
    )


class Cache(Structure):
    """One layer's cache."""

    _fields_ = (
        ("base", c_void_p),
        ("kv_heads", c_int32),
        ("head_size", c_int32),
        ("block_size", c_int32),
        ("layers", c_int32),
        ("dtype", c_int32),
    )


class Scoring(Structure):
    """How attention changes scores."""

    _fields_ = (("scale", c_float), ("softcap", c_float), ("window", c_int32), ("bias_stride", c_int32), ("bias", c_void_p))


_FLAG, _COUNT, _SIZE, _AT = c_int32, c_int32, c_size_t, c_void_p

SIGNATURES: dict[str, tuple[type | None, tuple[object, ...]]] = {
    "tgi_interface": (c_int32, ()),
    "tgi_permit": (c_int32, ()),
    "tgi_pool": (_AT, (_COUNT,)),
    "tgi_pool_free": (None, (_AT,)),
    "tgi_times": (None, (_AT, POINTER(c_uint64))),
    "tgi_map": (_AT, (_SIZE,)),
    "tgi_unmap": (None, (_AT, _SIZE)),
    "tgi_packed_size": (None, (_FLAG, _FLAG, _COUNT, _COUNT, POINTER(c_size_t), POINTER(c_size_t))),
    "tgi_pack": (None, (_AT, _FLAG, _FLAG, _AT, _AT, _COUNT, _COUNT, _COUNT)),
    "tgi_pack_bf12": (_SIZE, (_AT, _AT, _SIZE, _SIZE, _AT)),
    "tgi_pack_codes": (_SIZE, (_AT, POINTER(UnpackedCodes), _AT)),
    "tgi_pack_int8": (_SIZE, (_AT, POINTER(UnpackedCodes), _AT)),
    "tgi_linear": (None, (_AT, _FLAG, POINTER(Linear), _AT, _AT, _SIZE)),
    "tgi_add_lora": (None, (_AT, _FLAG, POINTER(PackedLoras), POINTER(Segment), _COUNT, _AT, _SIZE, _AT, _SIZE, _SIZE)),
    "tgi_gated": (None, (_AT, _FLAG, POINTER(Linear), _AT, _AT, _SIZE)),
    "tgi_write": (None, (_AT, _FLAG, POINTER(Cache), _AT, _COUNT, _AT, _SIZE, _SIZE, _AT, _SIZE, _SIZE)),
    "tgi_attend": (None, (_AT, _FLAG, POINTER(Cache), POINTER(Scoring), _COUNT, _AT, _COUNT, _AT, _COUNT, _AT, _AT)),
    "tgi_workspace": (_AT, ()),
    "tgi_workspace_free": (None, (_AT,)),
    "tgi_step": (None, (_AT, POINTER(Model), POINTER(Step), _AT)),
    "tgi_hidden": (None, (POINTER(Model), _AT, _AT, _COUNT, _AT)),
    "tgi_head": (None, (_AT, POINTER(Model), _AT, _AT, _COUNT, _AT)),
    "tgi_sample": (None, (_AT, _AT, _COUNT, _COUNT, _AT, _AT, _AT, _FLAG, _AT, _AT)),
}
"""Result and arguments of each function."""


def declare(library: ctypes.CDLL) -> None:
    """Declare the types of a library's functions. Raises AttributeError if it lacks one."""
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
