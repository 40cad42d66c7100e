"""The CPU as the static engine sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from tgi_backend_static_cpu.compiler import GraphCompiler
from tgi_backend_static_cpu.queue import LateQueue
from tgi_core.backend import Kernel, Progress
from tgi_core.engine.attention.blocks import FlatAttention, TableAttention
from tgi_core.engine.attention.cache import BLOCK_SIZES
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device import TableRunner
from tgi_core.engine.plain_kit import PlainKit
from tgi_core.engine.static.buckets import BucketRules
from tgi_core.engine.static.runner import StaticRunner

COARSE = BucketRules(takes=(32, 64, 128, 256, 512, 1024), waste=0.25)
"""Few sizes: here, a compile takes a second, and the cost of padding does not matter."""


class StaticCpuKit(PlainKit):
    """The emulated device. `flat` chooses the form of decode attention, `free` the bytes that it has."""

    device = torch.device("cpu")
    collectives = "gloo"
    program_bytes = 0

    def __init__(self, rules: BucketRules = COARSE, free: int = 1 << 30) -> None:
        self.rules, self._free = rules, free
        torch.set_num_threads(1)

    def queue(self) -> LateQueue:
        """Runs work as late as possible."""
        return LateQueue()

    def compiler(self) -> Mapping[str, str]:
        """torch's graph capture."""
        return {"torch": torch.__version__}

    def program_compiler(self, fields: Mapping[str, str], directory: Path | None) -> GraphCompiler:
        """torch's graph capture, checked by `ProgramGuard`."""
        return GraphCompiler([f"{name}={value}" for name, value in fields.items()], directory)

    def attention(self) -> Sequence[AttentionProvider]:
        """The static engine's."""
        return (FlatAttention(BLOCK_SIZES) if self.rules.flat else TableAttention(BLOCK_SIZES),)

    def choices(self) -> tuple[Kernel, ...]:
        """A note that this is an emulation."""
        return (Kernel("device", "emulated", "torch on the CPU, with the rules of a compiler of static shapes"),)

    def table_runner(self, weights: DecoderWeights, progress: Progress) -> TableRunner:
        """The static engine's runner."""
        return StaticRunner(self, weights, progress)

    def free_bytes(self) -> int:
        """The bytes that it was created with."""
        return self._free

    def default_rows(self) -> int:
        """Few."""
        return 8

    def default_step_tokens(self) -> int:
        """Few."""
        return 512
