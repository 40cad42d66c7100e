"""What a session needs of an engine: run rows of one step, and say what fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from tgi_core.backend import Capacity, Feature, Kernel, Memory, WarmupPlan
from tgi_core.backend.ledger import Work
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.sampler import LogitsReader


@dataclass(slots=True)
class StepLogits:
    """Logits of one step.

    `last` [works that yield, vocabulary] in the order of those works. `prompt` maps a request id to logits [positions, vocabulary]
    of the positions whose next token is in the prompt. Both may be overwritten by the next step. `reader` is a quick way to read `last`.
    """

    last: Tensor
    prompt: dict[int, Tensor] = field(default_factory=dict)
    reader: LogitsReader | None = None


def prompt_positions(work: Work) -> int:
    """How many positions of a row's part of a step have their next token in a prompt whose logprobs are asked for."""
    request = work.row.request
    if not request.want.prompt_logprobs:
        return 0
    return max(0, min(work.start + work.take, request.prompt_len - 1) - work.start)


class Runner(Protocol):
    """One way to run a model for many rows."""

    @property
    def cache_dtype(self) -> str:
        """What its cache is made of, in the contract's words: "auto", or the type of 8 bits that was asked for."""

    @property
    def features(self) -> frozenset[Feature]:
        """Features that depend on how the model runs."""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """How the model runs, with reasons."""

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Block sizes to choose from, the best first."""

    def reserve(self, plan: WarmupPlan) -> Capacity:
        """Allocate the cache and promise limits. Raises OutOfMemory."""

    def run(self, works: Sequence[Work]) -> StepLogits:
        """Compute one step; writes only the positions that the works name."""

    def release(self) -> None:
        """Give the cache back. Idempotent."""


class Enqueued(Protocol):
    """A runner whose step is a function of tensors on the device: it can be enqueued ahead of the host, and captured."""

    @property
    def block_size(self) -> int:
        """Positions per block of the cache that is in use."""

    def use_probe_cache(self) -> None:
        """Run over a cache of two blocks until `release`."""

    def reserve(self, plan: WarmupPlan, shares: tuple[Memory, ...] | None = None) -> Capacity:
        """Allocate the cache and promise limits, with these shares of the memory taken by other things than weights and cache (None: by
        activations, as estimated). Raises OutOfMemory."""

    def forward(self, step: StepMetadata, keep: Tensor | None) -> Tensor:
        """Logits [kept, vocabulary] of the flat tokens `keep` (int64; None: all). Enqueues only, and asks the device for nothing.

        Of the step it reads tensors on the device and the bounds beside them; `order` is empty where the step is being captured.
        A token whose slot is −1 pads the step: it is written nowhere, and its row of length 0 attends to nothing.
        """
