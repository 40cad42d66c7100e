"""Graphs without TunableOp: trying out variants of a product is not allowed while a graph is captured."""

from __future__ import annotations

from typing import Any

import torch


class UntunedGraph(torch.cuda.CUDAGraph):
    """A graph that keeps TunableOp from tuning while it is captured; what is tuned already is used."""

    _tuned = False

    def capture_begin(self, *args: Any, **kwargs: Any) -> None:
        """Let what the current stream is given go into the graph."""
        self._tuned = torch.cuda.tunable.is_enabled() and torch.cuda.tunable.tuning_is_enabled()
        if self._tuned:
            torch.cuda.tunable.tuning_enable(False)
        super().capture_begin(*args, **kwargs)

    def capture_end(self) -> None:
        """End that."""
        try:
            super().capture_end()
        finally:
            if self._tuned:
                torch.cuda.tunable.tuning_enable(True)
