"""The self-check of a runner at load: a few tokens in chunks, with another row and alone, against reference logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tgi_core.backend import Request
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.attention.interface import NotRagged
from tgi_core.engine.comparison import Agree, relative_difference
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.runner import StepLogits

RAGGED_CHUNKS = (3, 2, 1)
"""Tokens of each step of the self-check: a first chunk, one that continues it, a decode step."""

OWN_CACHE_CHUNKS = (5, 1)

EIGHT_BIT_LIMIT = 0.25
"""The allowed relative difference of logits with an 8-bit cache, or with inputs of linear layers that are rounded to 8 bits."""

Expected = dict[str | None, Tensor]
"""Logits [tokens, vocabulary] of the probe tokens, or of the last of them, by adapter; None is the model alone."""


class SelfCheckable(Protocol):
    """A runner that can be checked before its cache is reserved."""

    @property
    def shape(self) -> ModelShape:
        """The model's sizes."""

    @property
    def cache_dtype(self) -> str:
        """The dtype of its cache; see `Runner.cache_dtype`."""

    @property
    def rounds_inputs(self) -> bool:
        """Whether inputs of its linear layers are rounded to 8 bits."""

    @property
    def agree(self) -> Agree:
        """The minimum over the ranks' values."""

    def use_probe_cache(self) -> None:
        """Use a cache of two blocks until `release`."""

    def run(self, row_inputs: Sequence[RowInput]) -> StepLogits:
        """Compute one step."""

    def release(self) -> None:
        """Free the cache."""


def probe_ids(vocab_size: int) -> list[int]:
    """A few fixed tokens; none has an id that is usual for padding."""
    return [(7 * i + 5) % vocab_size for i in range(sum(RAGGED_CHUNKS))]


def tolerance(dtype: torch.dtype, cache_dtype: str = "auto", rounds_inputs: bool = False) -> float:
    """The allowed relative difference of logits, for a model's dtype and that of its cache; see `SelfCheckable`."""
    if cache_dtype != "auto" or rounds_inputs:
        return EIGHT_BIT_LIMIT
    return 1e-3 if dtype is torch.float32 else 0.1


def check_runner(runner: SelfCheckable, expected: Expected, chunks: tuple[int, ...]) -> None:
    """Run the probe tokens with each adapter. Raises NotRagged if their logits differ from the expected ones."""
    for adapter, logits in expected.items():
        _check_runner(runner, adapter, logits, chunks)


def _check_runner(runner: SelfCheckable, adapter: str | None, expected: Tensor, chunks: tuple[int, ...]) -> None:
    """Run the probe tokens in chunks, the first of which is the prompt, with a row without an adapter, and the last chunk alone."""
    ids = probe_ids(expected.shape[-1])
    row, other = _probe_row(1, ids, chunks[0], adapter), _probe_row(2, ids[::-1], chunks[0])
    runner.use_probe_cache()
    start, found = 0, []
    for take in chunks:
        others = [RowInput(other, start, take, yields=True)] if start + take < len(ids) else []
        found.append(
            runner.run([*others, RowInput(row, start, take, yields=True)]).last[-1].clone()
        )  # the next step may write to the same memory
        start += take
    runner.release()
    logits = torch.stack(found).to(expected.device)[:, : expected.shape[1]]  # ids that only prompts have follow
    places = torch.tensor(chunks).cumsum(0) - 1 - (len(ids) - len(expected))
    difference = relative_difference(logits[places >= 0], expected[places[places >= 0]])
    if not runner.agree(int(difference <= tolerance(runner.shape.dtype, runner.cache_dtype, runner.rounds_inputs))):
        raise NotRagged(f"logits differ from the reference by {difference:.2g} of their norm")


def _probe_row(id: int, tokens: list[int], prompt: int, adapter: str | None = None) -> RowState:
    return RowState(Request(id, tuple(tokens), prompt, 0, ((id,),), 1, adapter=adapter), tokens, 0, ([id],))
