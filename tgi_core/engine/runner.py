"""The interface between a session and an engine: run the rows of a step, and promise limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tgi_core.backend import Capacity, Feature, Kernel, Memory, Request, WarmupPlan
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.prompt_scores import ScoredTokens
from tgi_core.engine.sampler import PlainSampler


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """The output head's input for those tokens of a step after which one is sampled. `take` returns it [places, hidden] at some places;
    by request, `first` is the place of its newest token, which its drafts follow. The next step may overwrite them.
    """

    first: Mapping[int, int]
    take: Callable[[list[int]], Tensor]

    def after(self, made: Mapping[int, int]) -> Tensor:
        """[rows, hidden] from which rows chose their last token, given how many tokens each request made."""
        return self.take([self.first[id] + count - 1 for id, count in made.items()])


@dataclass(frozen=True, slots=True)
class LayerStates:
    """Hidden states inside the model, of all tokens of a step.

    `states` [tokens, layers · hidden] holds each token's residual stream before some layers, concatenated, or the input of the output head
    [tokens, hidden]; by request, `first` is the place of its first token in the step.
    """

    first: Mapping[int, int]
    states: Tensor


@dataclass(slots=True)
class StepLogits:
    """A step's input to sampling. `last` are logits [row inputs that yield, vocabulary] in their order, after each row's newest token,
    and `drafts` maps a request id to logits [drafts, vocabulary] after each of its drafts; the next step may overwrite both. `prompt`
    maps a request id to logprobs float32 [positions] of prompt tokens, by the positions before them. `plain_sampler` samples plain rows.
    `hidden` and `layers` are set if the runner keeps them.
    """

    last: Tensor
    prompt: dict[int, Tensor] = field(default_factory=dict)
    plain_sampler: PlainSampler | None = None
    drafts: dict[int, Tensor] = field(default_factory=dict)
    hidden: HiddenStates | None = None
    layers: LayerStates | None = None

    @classmethod
    def of(
        cls,
        row_inputs: Sequence[RowInput],
        kept: Tensor,
        first: Mapping[int, int],
        prompt: dict[int, Tensor] | None = None,
        plain_sampler: PlainSampler | None = None,
        hidden: HiddenStates | None = None,
    ) -> StepLogits:
        """From logits `kept` [kept, vocabulary]: by request, `first` is the place of those after its newest token; those after its drafts
        follow."""
        yielding = [(row_input, first[row_input.row.request.id]) for row_input in row_inputs if row_input.yields]
        drafts = {
            row_input.row.request.id: kept[at + 1 : at + 1 + len(row_input.drafts)]
            for row_input, at in yielding
            if row_input.drafts
        }
        places = [at for _, at in yielding]
        last = (
            kept
            if places == list(range(len(kept)))
            else kept.index_select(0, torch.tensor(places, dtype=torch.int64, device=kept.device))
        )
        return cls(last, prompt or {}, plain_sampler, drafts, hidden)


def prompt_positions(row_input: RowInput) -> int:
    """Number of a row's positions in a step that precede a prompt token whose logprob is requested."""
    request = row_input.row.request
    if not request.want.prompt_logprobs:
        return 0
    return max(0, min(row_input.start + row_input.take, request.prompt_len - 1) - row_input.start)


def following_tokens(row_input: RowInput) -> list[int]:
    """The tokens after those positions."""
    first = row_input.start + 1
    return row_input.row.tokens[first : first + prompt_positions(row_input)]


@dataclass(slots=True)
class ScoredPrompts:
    """Which tokens of a step give the logprobs of prompt tokens: their `places`, and the prompt tokens `following` them. Those of one
    request are at its place in `prompts`."""

    places: list[int] = field(default_factory=list)
    following: list[int] = field(default_factory=list)
    prompts: dict[int, slice] = field(default_factory=dict)

    def add(self, row_input: RowInput, first: int) -> int:
        """Add those of a row whose first token is at `first`. Returns how many there are."""
        asked = following_tokens(row_input)
        if asked:
            self.prompts[row_input.row.request.id] = slice(len(self.places), len(self.places) + len(asked))
            self.places += range(first, first + len(asked))
            self.following += asked
        return len(asked)

    def by_request(self, scores: Tensor) -> dict[int, Tensor]:
        """Logprobs float32 [scored], by request."""
        return {id: scores[place] for id, place in self.prompts.items()}


class Runner(Protocol):
    """One way to run a model for many rows."""

    @property
    def cache_dtype(self) -> str:
        """The dtype of its cache, as the contract names it: "auto", or the requested 8-bit dtype."""

    @property
    def features(self) -> frozenset[Feature]:
        """Features that depend on how the model runs."""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """How the model runs, with reasons."""

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Supported block sizes, best first."""

    def reserve(self, plan: WarmupPlan) -> Capacity:
        """Allocate the cache and promise limits. Raises OutOfMemory."""

    def run(self, row_inputs: Sequence[RowInput]) -> StepLogits:
        """Compute one step. Writes only the positions of these inputs."""

    def release(self) -> None:
        """Free the cache. Idempotent."""


@runtime_checkable
class KeepsHidden(Protocol):
    """A runner that can keep the hidden states of its steps for a speculator."""

    def keep_hidden(self) -> str:
        """Return them with each step from now on, in `StepLogits.hidden`. Returns why it cannot; empty if it does."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocabulary] of hidden states [rows, hidden]. Call `run` first."""


class PromptImages(Protocol):
    """The images in the prompts of a model; see `tgi_core.engine.media`."""

    def admit(self, request: Request) -> None:
        """See `TakesImages.admit_images`."""

    def check(self, request: Request, end: int) -> None:
        """See `TakesImages.check_images`."""

    def encode(self, item: bytes) -> None:
        """See `TakesImages.encode_image`."""

    def undisturbed(self) -> AbstractContextManager[None]:
        """See `TakesImages.undisturbed`."""

    def positions(self, step: StepMetadata) -> Tensor | None:
        """Positions [axes, 1, tokens] for rotary embeddings; None if they are those of the step."""

    def rows(self, step: StepMetadata) -> AbstractContextManager[None]:
        """Put the embeddings of images in the place of their placeholders in this step, which runs inside."""


@runtime_checkable
class TakesImages(Protocol):
    """A runner of a model with a vision tower."""

    @property
    def whole_images(self) -> bool:
        """See `Capabilities`."""

    def admit_images(self, request: Request) -> None:
        """Compute the embeddings that a new request needs of its images. Raises InvalidRequest if they don't fit the model or the
        prompt, are damaged, or are cut by its first step: in a step, that would fail other rows."""

    def check_images(self, request: Request, end: int) -> None:
        """Raises InvalidRequest if a step that ends at this position of a row would cut an image that runs whole."""

    def encode_image(self, item: bytes) -> None:
        """Compute the embeddings of an image ahead; see `SessionSpec.encode`. Raises InvalidRequest."""

    def undisturbed(self) -> AbstractContextManager[None]:
        """Let images that are encoded now wait while a step runs inside."""

    def refuse_images(self) -> None:
        """Take none, though the model could."""


@runtime_checkable
class SeesWholePrompts(Protocol):
    """A runner of models of which some let tokens of a prompt see each other."""

    @property
    def whole_prompts(self) -> bool:
        """See `Capabilities`."""


@runtime_checkable
class CountsCompiles(Protocol):
    """A runner of compiled programs."""

    @property
    def compiles(self) -> int:
        """Number of programs compiled so far, by the compiler's own counter."""


class CapturableRunner(Protocol):
    """A runner whose step is a function of tensors on the device, so that it can be enqueued ahead of the host and captured."""

    @property
    def block_size(self) -> int:
        """Positions per block of the cache that is in use."""

    @property
    def captures_prompts(self) -> bool:
        """Whether steps with prompts can be captured as well: attention then follows from a step's arrays alone."""

    def use_probe_cache(self) -> None:
        """Use a cache of two blocks until `release`."""

    def reserve(self, plan: WarmupPlan, shares: tuple[Memory, ...] | None = None) -> Capacity:
        """Allocate the cache and promise limits. `shares` is the memory for everything but weights and cache (None: estimated activations).
        Raises OutOfMemory."""

    def forward(self, step: StepMetadata, keep: Tensor | None) -> Tensor:
        """Logits [kept, vocabulary] of the flat tokens `keep` (int64; None: all). Only enqueues; never synchronizes with the device.

        Reads the step's tensors on the device and its bounds; `order` is empty while a step is captured. A token whose slot is −1 is
        padding: it is not written to the cache, and its row of length 0 attends to nothing.
        """

    def forward_scored(self, step: StepMetadata, keep: Tensor, scored: ScoredTokens) -> tuple[Tensor, Tensor]:
        """The same for a step in which logprobs of prompts are requested: logits [kept, vocabulary], and logprobs float32 [scored]."""
