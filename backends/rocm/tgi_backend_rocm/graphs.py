"""Graphs without TunableOp: tuning a GEMM is not allowed while a graph is captured."""

from __future__ import annotations

from typing import Any

import torch


class UntunedGraph(torch.cuda.CUDAGraph):
    """A graph that keeps TunableOp from tuning while it is captured; GEMMs that are tuned already are used."""

    _tuned = False

    def capture_begin(self, *args: Any, **kwargs: Any) -> None:
        """Start capturing, without tuning."""
        self._tuned = torch.cuda.tunable.is_enabled() and torch.cuda.tunable.tuning_is_enabled()
        if self._tuned:
            torch.cuda.tunable.tuning_enable(False)
        super().capture_begin(*args, **kwargs)

    def capture_end(self) -> None:
        """End the capture."""
        try:
            super().capture_end()
        finally:
            if self._tuned:
                torch.cuda.tunable.tuning_enable(True)
