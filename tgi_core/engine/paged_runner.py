"""The base of runners over a paged cache: the cache, its limits, and a step from works to logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tgi_core.backend import CacheGroup, CacheKind, Capacity, Feature, Kernel, Memory, WarmupPlan
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.attention.cache import SPARE_BLOCKS, LayerShape, PagedCache
from tgi_core.engine.attention.metadata import StepMetadata, build
from tgi_core.engine.attention.provider import ArrayAttention, AttentionProvider, KVCacheAllocator
from tgi_core.engine.cache_sizes import window_layers
from tgi_core.engine.comparison import Agree
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.logits_selection import Selection, selected_tokens
from tgi_core.engine.memory import CacheBeside, plan_capacity
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.prompt_scores import ScoredTokens, prompt_logprobs
from tgi_core.engine.runner import HiddenStates, LayerStates, StepLogits

CANNOT_GO_BACK = "the states of a row cannot be rolled back"
"""Why a stateful runner runs no drafts."""

_WHOLE_HEAD = "the output head of this model cannot run separately"


class PagedRunner(ABC):
    """Runs flat steps over a paged cache. `forward` never synchronizes with the device, so it can run ahead and be captured."""

    features = frozenset({Feature.CHUNKED_PREFILL, Feature.PREFIX_REUSE})
    kernels: tuple[Kernel, ...] = ()
    spare_blocks = SPARE_BLOCKS
    """Blocks of the cache besides those of rows."""
    stateful = False
    """Whether rows have states besides blocks, so that steps depend on more than their tensors and cannot be undone."""
    whole_prompts = False
    """See `Capabilities`."""
    drafts_refusal = ""
    """Why rows cannot run drafts, if that is known of the model."""
    rounds_inputs = False
    """See `SelfCheckable`."""
    enqueued = True
    """Whether a step only enqueues, and follows from its tensors alone; see `CapturableRunner`."""

    def __init__(
        self,
        layers: tuple[LayerShape, ...],
        shape: ModelShape,
        kit: DeviceKit,
        provider: AttentionProvider,
        agree: Agree = int,
    ) -> None:
        self.layers, self.shape, self.provider, self.agree = layers, shape, provider, agree
        self.block_sizes = provider.block_sizes
        self.block_size = self.block_sizes[0]
        """Positions per block of the cache in use."""
        self.cache_dtype = "auto" if kit.kv_cache_dtype is None else kit.kv_cache_dtype.name
        self._stored_dtype = shape.dtype if kit.kv_cache_dtype is None else kit.kv_cache_dtype.dtype
        self._kit, self._keeps_hidden, self._keeps_tokens = kit, False, False
        self.cache: PagedCache | None = None
        self.beside: CacheBeside | None = None
        """Another model's cache with the same blocks as this one's."""
        self._separates = False

    def separate_windows(self) -> None:
        """See `SeparatesWindows`. Another cache's blocks are those of the group that keeps all positions, and a prompt that sees all of
        itself does so through windows."""
        self._separates = not self.whole_prompts and (self.beside is None or not all(shape.window for shape in self.layers))

    @property
    def captures_prompts(self) -> bool:
        """Whether steps with prompts can be captured; see `CapturableRunner`."""
        return isinstance(self.provider, ArrayAttention)

    @abstractmethod
    def hidden(self, step: StepMetadata, keep: Tensor | None) -> Tensor:
        """The input of `logits`, [kept, ...], for a step's flat tokens `keep`, or all; see `CapturableRunner.forward`."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [tokens, vocabulary]: the output head. Only enqueues."""

    def forward(self, step: StepMetadata, keep: Tensor | None) -> Tensor:
        """Logits [kept, vocabulary] of a step's flat tokens `keep`, or of all; see `CapturableRunner.forward`."""
        return self.logits(self.hidden(step, keep))

    def forward_scored(self, step: StepMetadata, keep: Tensor, scored: ScoredTokens) -> tuple[Tensor, Tensor]:
        """Logits of the flat tokens `keep`, and logprobs of prompt tokens; see `CapturableRunner.forward_scored`."""
        hidden = self.hidden(step, torch.cat((keep, scored.places)))
        kept = len(keep)
        return self.logits(hidden[:kept]), prompt_logprobs(self.logits, hidden[kept:], scored.following)

    def reserve(self, plan: WarmupPlan, shares: tuple[Memory, ...] | None = None) -> Capacity:
        """Allocate the cache and promise limits; see `CapturableRunner.reserve`. Raises OutOfMemory."""
        capacity = self.promise(plan, shares)
        self.allocate(capacity)
        return capacity

    def allocate(self, capacity: Capacity) -> None:
        """Allocate the cache of a promise."""
        first = capacity.groups[0]
        windows = next((group for group in capacity.groups if group.kind is CacheKind.WINDOW), None)
        self.use_cache(first.num_blocks, first.block_size, windows)

    def promise(self, plan: WarmupPlan, shares: tuple[Memory, ...] | None = None, beside_bytes: int = 0) -> Capacity:
        """The limits that `reserve` would promise now, with `beside_bytes` of memory for other things. Raises OutOfMemory."""
        if Feature.SPECULATION not in self.features:
            plan = replace(plan, draft=0)
        block_size = plan.block_size or self.block_sizes[0]
        block_bytes = self.cache_block_bytes(block_size)
        spare = beside_bytes + self.spare_blocks * block_bytes + 2 * len(self.layers) * self._kit.allocation_bytes
        windows = window_layers(self.layers, block_size, self._stored_dtype) if self._separates else None
        return plan_capacity(
            plan, self.shape, self._kit, block_size, block_bytes, self.agree, shares, spare, self.beside, windows
        )

    def cache_block_bytes(self, block_size: int) -> int:
        """Bytes of a block of this size."""
        return PagedCache.block_bytes(self.layers, block_size, self._stored_dtype)

    def use_probe_cache(self) -> None:
        """Use a cache of two blocks, for the self-check."""
        self.use_cache(2, self.block_sizes[0])

    def run(self, row_inputs: Sequence[RowInput]) -> StepLogits:
        """Compute one step."""
        step = build(self._arranged(row_inputs), self.block_size, self._kit.device, self._cache_in_use().windows)
        tokens = selected_tokens(row_inputs, step)
        with torch.inference_mode():
            if self._keeps_hidden or self._keeps_tokens:
                return self._run_apart(row_inputs, step, tokens)
            if tokens.scored.places:
                scored = ScoredTokens(self._upload(tokens.scored.places), self._upload(tokens.scored.following))
                logits, scores = self.forward_scored(step, self._upload(tokens.kept), scored)
                return StepLogits.of(row_inputs, logits, tokens.first, tokens.scored.by_request(scores))
            every = tokens.kept == list(range(step.cu_seqlens[-1]))
            logits = self.forward(step, None if every else self._upload(tokens.kept))
            return StepLogits.of(row_inputs, logits, tokens.first)

    def keep_hidden(self) -> str:
        """See `KeepsHidden`."""
        self._keeps_hidden = not self.shape.whole_head
        return "" if self._keeps_hidden else _WHOLE_HEAD

    def keep_tokens(self) -> str:
        """See `KeepsTokens`."""
        self._keeps_tokens = not self.shape.whole_head
        return "" if self._keeps_tokens else _WHOLE_HEAD

    def _run_apart(self, row_inputs: Sequence[RowInput], step: StepMetadata, tokens: Selection) -> StepLogits:
        """Compute one step with a separate output head, and keep the head's input."""
        kept, scored, prompt = len(tokens.kept), tokens.scored, dict[int, Tensor]()
        places, layers = self._upload([*tokens.kept, *scored.places]), None
        if self._keeps_tokens:
            every = self.hidden(step, None)
            first = zip((row_input.row.request.id for row_input in step.order), step.cu_seqlens.tolist(), strict=False)
            hidden, layers = every.index_select(0, places), LayerStates(dict(first), every)
        else:
            hidden = self.hidden(step, places)
        if scored.places:
            prompt = scored.by_request(prompt_logprobs(self.logits, hidden[kept:], self._upload(scored.following)))
        states = HiddenStates(tokens.first, lambda places: hidden[self._upload(places)])
        return replace(StepLogits.of(row_inputs, self.logits(hidden[:kept]), tokens.first, prompt, hidden=states), layers=layers)

    def _upload(self, indices: list[int]) -> Tensor:
        """int64 on the device."""
        return torch.tensor(indices, dtype=torch.int64).to(self._kit.device)

    def release(self) -> None:
        """Free the cache."""
        self.cache = None

    def use_cache(self, num_blocks: int, block_size: int, windows: CacheGroup | None = None) -> None:
        """Use a cache of this size until `release`; `windows` is the group of layers with a window, if they have one of their own."""
        self.block_size = block_size
        provider, sizes = self.provider, (num_blocks, block_size, self._stored_dtype, self._kit.device)
        new_layers = provider.new_layers if isinstance(provider, KVCacheAllocator) else None
        self.cache = PagedCache(self.layers, *sizes, provider.new_layer, new_layers, windows)

    def _arranged(self, row_inputs: Sequence[RowInput]) -> Sequence[RowInput]:
        """The row inputs in the order in which the model runs them."""
        return row_inputs

    def _cache_in_use(self) -> PagedCache:
        if self.cache is None:
            raise RuntimeError("run before reserve")
        return self.cache
