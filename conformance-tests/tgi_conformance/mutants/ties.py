"""How ties are broken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import Sampling
from tgi_core.backend import sampling as formula
from tgi_core.backend.batch_tracker import RowInput


@mutant("ties-to-the-last", "formula.ties")
class TiesToTheLast(Sound):
    """An argmax that compares with >=: among equals the highest id wins."""

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        real = formula.choose

        def choose(logprobs: formula.Logits, sampling: Sampling, position: int) -> int:
            best = max(logprobs.values())
            return (
                real(logprobs, sampling, position) if sampling.do_sample else max(id for id in logprobs if logprobs[id] == best)
            )

        with patch.object(formula, "choose", choose):
            return super()._sample(row_input, state)


@mutant("top-k-keeps-equals", "formula.ties")
class TopKKeepsEquals(Sound):
    """Top-k drops only tokens below the last one kept, and keeps its equals (transformers' TopKLogitsWarper)."""

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        how = row_input.row.request.sampling
        real = formula._by_logprob

        def by_logprob(logits: formula.Logits) -> Sequence[int]:
            order = real(logits)
            cut = order[: how.top_k]
            return _Head([*cut, *(id for id in order[len(cut) :] if cut and logits[id] == logits[cut[-1]])], order)

        if not (how.do_sample and how.top_k):
            return super()._sample(row_input, state)
        with patch.object(formula, "_by_logprob", by_logprob):
            return super()._sample(row_input, state)


class _Head(list[int]):
    """An order whose every slice is `kept`."""

    def __init__(self, kept: list[int], order: list[int]) -> None:
        super().__init__(order)
        self._kept = kept

    def __getitem__(self, index: Any) -> Any:
        return self._kept if isinstance(index, slice) else super().__getitem__(index)
