"""The fused kernels as a compiler without a device takes them: one case per variant that the launches make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tgi_core.engine.decoder.operators import HeadSizes
from tgi_core.engine.triton.activation import BLOCK, silu_mul_kernel
from tgi_core.engine.triton.norm import norm_warps, rms_norm_kernel
from tgi_core.engine.triton.rotary import head_blocks, turn_and_store_kernel
from tgi_core.engine.triton.sampling import CHUNK, choose_kernel, summarize_kernel

DTYPES = ("bf16", "fp16", "fp32")

HEADS = (HeadSizes(32, 8, 128), HeadSizes(16, 16, 64), HeadSizes(32, 32, 96), HeadSizes(64, 8, 256), HeadSizes(9, 3, 80))
"""Head counts and sizes of published models, and one that is no power of two."""


@dataclass(frozen=True)
class Case:
    """A kernel with the types of its arguments ("*bf16" points to bfloat16) and its constants."""

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, int] = field(default_factory=lambda: {"num_warps": 4})


def fused_cases() -> Iterator[Case]:
    """All variants."""
    for dtype in DTYPES:
        yield from _norms(dtype)
        yield from _stores(dtype)
        yield Case(
            f"silu_mul {dtype}", silu_mul_kernel, {"gate_up": f"*{dtype}", "out": f"*{dtype}", "columns": "i32"}, {"BLOCK": BLOCK}
        )
        yield from _choices(dtype)


def _norms(dtype: str) -> Iterator[Case]:
    pointers = dict.fromkeys(("stream", "branch", "weight", "out"), f"*{dtype}")
    for joins in (False, True):
        for columns in (1024, 4096, 8192, 16384):
            constants = {"JOINS": joins, "BLOCK": columns}
            types = pointers | {"columns": "i32", "scale": "fp32", "epsilon": "fp32"}
            yield Case(f"norm {dtype} {constants}", rms_norm_kernel, types, constants, {"num_warps": norm_warps(columns)})


def _stores(dtype: str) -> Iterator[Case]:
    types = dict.fromkeys(("qkv", "query_norm", "key_norm", "keys", "values"), f"*{dtype}")
    types |= {"positions": "*i64", "slots": "*i64", "turns": "*fp32", "epsilon": "fp32"}
    for sizes in HEADS:
        for half in (0, sizes.head // 4, sizes.head // 2):
            for normed in (False, True):
                constants = head_blocks(sizes, half) | {"NORMED": normed}
                yield Case(f"store {dtype} {sizes} {half} {normed}", turn_and_store_kernel, types, constants, {"num_warps": 1})


def _choices(dtype: str) -> Iterator[Case]:
    for wide, draws in (("fp64", True), ("fp32", True), ("fp32", False)):
        found = {"peaks": "*fp32", "places": "*i32", "sums": f"*{wide}"}
        sizes = dict.fromkeys(("stride", "vocabulary", "chunks"), "i32")
        given = {"logits": f"*{dtype}"} | ({"temperatures": f"*{wide}"} if draws else {})
        constants = {"CHUNK": CHUNK, "DRAWS": draws} | ({} if draws else {"temperatures": None})
        options = {"num_warps": 8}
        yield Case(f"summarize {dtype} {wide} {draws}", summarize_kernel, given | found | sizes, constants, options)
        drawn = {"uniforms": "*fp32"} if draws else {}
        chosen = {"tokens": "*i64", "logprobs": "*fp32"}
        constants = constants | {"CHUNKS": 64} | ({} if draws else {"uniforms": None})
        yield Case(f"choose {dtype} {wide} {draws}", choose_kernel, given | drawn | found | chosen | sizes, constants, options)
