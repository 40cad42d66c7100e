"""One row at a time, each with the cache object that transformers creates for the model.

For models that the ragged engine cannot run: state-space and hybrid models, and those whose attention does not go through
transformers' interface. A block holds a whole row. Correct but slow: the rows of a step run one after another.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from tgi_core.backend import CacheGroup, CacheKind, Capacity, Feature, Kernel, Memory, OutOfMemory, WarmupPlan
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.comparison import Agree
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.lora.adapters import Adapters
from tgi_core.engine.models.build import text_config
from tgi_core.engine.models.cache_names import CACHE_NAMES, cache_name
from tgi_core.engine.models.calling import PLAIN, Convention
from tgi_core.engine.models.output_head import OutputHead, runs_apart
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.prompt_scores import prompt_logprobs
from tgi_core.engine.runner import StepLogits, following_tokens


class HFCacheModel:
    """Calls a model with its own cache. A model that returns none, or is not `cached`, is run over the whole row every time."""

    def __init__(self, model: PreTrainedModel, cached: bool = True, agree: Agree = int, convention: Convention = PLAIN) -> None:
        self.model, self._cached, self._convention = model, cached, convention
        self._takes = set(inspect.signature(model.forward).parameters)
        # One row has no padding, so a mask of ones has no effect, unless positions are computed from it, or the window of masks that are
        # only made from one. State-space models compute wrong results with one: they multiply it into their tokens.
        self._masked = not model._is_stateful
        self.head: OutputHead | None = None
        """The output head, if it can run separately on every rank."""
        self._separate_head(agree)

    def new_cache(self) -> dict[str, Any]:
        """The cache of a row before its first token, by argument name."""
        if not self._cached or not self.model._supports_default_dynamic_cache():
            return {}
        name = cache_name(self.model)
        return {name: DynamicCache(config=text_config(self.model.config))} if name else {}

    def run(self, tokens: list[int], start: int, cache: dict[str, Any], keep: int, **more: Tensor) -> Tensor:
        """Logits [keep, vocabulary] of the last `keep` of tokens start…; changes `cache`. The model gets `more` if it takes that."""
        arguments = self._arguments(tokens, start, cache, keep) | more
        output = self.model(**{name: value for name, value in arguments.items() if name in self._takes})
        self._update(cache, output)
        logits: Tensor = output.logits[0, -keep:]
        return logits

    def hidden(self, tokens: list[int], start: int, cache: dict[str, Any], keep: int) -> Tensor:
        """The input of `logits` for the last `keep` of tokens start…, [keep, ...]; changes `cache`."""
        if self.head is None:
            return self.run(tokens, start, cache, keep)
        output = self.head.run_base(self._arguments(tokens, start, cache, keep))
        self._update(cache, output)
        hidden: Tensor = output.last_hidden_state[0, -keep:]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [tokens, vocabulary]."""
        return hidden if self.head is None else self.head.logits(hidden)

    def _separate_head(self, agree: Agree) -> None:
        """Run the output head separately from now on, if that gives the same logits."""
        tokens = [1, 0]

        def apart() -> Tensor:
            self.head = OutputHead(self.model)
            return self.logits(self.hidden(tokens, 0, self.new_cache(), len(tokens)))

        same = runs_apart(self.model, lambda: self.run(tokens, 0, self.new_cache(), len(tokens)), apart)
        if not agree(int(same)):
            self.head = None

    def _update(self, cache: dict[str, Any], output: Any) -> None:
        for name in CACHE_NAMES if self._cached else ():
            if name in self._takes and getattr(output, name, None) is not None:
                cache[name] = getattr(output, name)

    def _arguments(self, tokens: list[int], start: int, cache: dict[str, Any], keep: int) -> dict[str, Any]:
        if self._convention.whole_rows or not any(value is not None for value in cache.values()):
            start = 0
        ids, end = torch.tensor([tokens[start:]], device=self.model.device), len(tokens)
        positions = torch.arange(start, end, device=ids.device)
        mask = {"attention_mask": torch.ones(1, end, dtype=torch.long, device=ids.device)} if self._masked else {}
        placed = {} if self._convention.counts_positions else {"position_ids": positions.unsqueeze(0)}
        return {
            "input_ids": ids,
            **placed,
            "cache_position": positions,
            "use_cache": self._cached,
            "logits_to_keep": keep,
            **mask,
            **cache,
        }


class HFCacheRunner:
    """Runs rows one by one; `block_size` is the longest row."""

    features: frozenset[Feature] = frozenset()
    cache_dtype = "auto"
    rounds_inputs = False

    def __init__(
        self,
        model: PreTrainedModel,
        shape: ModelShape,
        kit: DeviceKit,
        adapters: Adapters,
        agree: Agree = int,
        reason: str = "",
        cached: bool = True,
        convention: Convention = PLAIN,
    ) -> None:
        """Without `cached`, a row's tokens are all computed again in every step."""
        name = "the model's own, row by row" if cached else "the model's own, over the whole row in every step"
        self.kernels: tuple[Kernel, ...] = (Kernel("attention", name, reason),)
        self._kit, self._adapters, self.agree = kit, adapters, agree
        self._model = HFCacheModel(model, cached, agree, convention)
        self.shape = replace(shape, whole_head=self._model.head is None)
        self._slots: dict[int, dict[str, Any]] = {}
        self.block_sizes = (shape.max_positions,)

    def use_probe_cache(self) -> None:
        """Nothing to reserve for the self-check: rows have their own caches."""

    def reserve(self, plan: WarmupPlan) -> Capacity:
        """Promise as many rows as there is memory for their caches. Raises OutOfMemory."""
        fixed, per_token = self._cache_bytes()
        row_tokens = min(plan.max_row_tokens or self.shape.max_positions, self.shape.max_positions)
        wanted = plan.max_rows or self._kit.default_rows()
        step_tokens = max(plan.max_step_tokens or 0, row_tokens)
        activations = self.shape.activation_bytes(wanted, step_tokens)
        row_bytes = fixed + per_token * row_tokens
        free = self._kit.free_bytes() - activations
        rows = min(wanted, plan.num_blocks or wanted, self.agree(max(0, free) // max(1, row_bytes)))
        if rows < min(1, wanted):
            raise OutOfMemory(f"cache: a row of {row_tokens} tokens needs {row_bytes:,} bytes, and {max(0, free):,} are free")
        memory = (
            *self.shape.weights,
            Memory("kv cache", rows * row_bytes),
            Memory("activations", activations),
            Memory("reserve", max(0, free - rows * row_bytes)),
        )
        group = CacheGroup(CacheKind.STATE, row_tokens, rows)
        return Capacity((group,), rows, row_tokens, step_tokens, rows, memory=memory)

    def _cache_bytes(self) -> tuple[int, int]:
        """Bytes of a row's cache that don't grow, and those per token; measured."""
        sizes = []
        for count in (4, 8):
            cache = self._model.new_cache()
            with torch.inference_mode():
                self._model.run([1] * count, 0, cache, 1)
            sizes.append(_tensor_bytes(cache, set()))
        per_token = -(-(sizes[1] - sizes[0]) // 4)
        return max(0, sizes[0] - 4 * per_token), per_token

    def run(self, row_inputs: Sequence[RowInput]) -> StepLogits:
        """Compute one step, row by row."""
        last: list[Tensor] = []
        prompt: dict[int, Tensor] = {}
        with torch.inference_mode():
            for row_input in row_inputs:
                if following := following_tokens(row_input):
                    hidden = self._run(row_input, row_input.take, self._model.hidden)
                    wanted = torch.tensor(following, device=hidden.device)
                    prompt[row_input.row.request.id] = prompt_logprobs(self._model.logits, hidden[: len(following)], wanted)
                    logits = self._model.logits(hidden[-1:])
                else:
                    logits = self._run(row_input, 1, self._model.run)
                if row_input.yields:
                    last.append(logits[-1])
            return StepLogits(torch.stack(last) if last else torch.zeros(0, self.shape.vocab_size), prompt)

    def _run(self, row_input: RowInput, keep: int, run: Callable[[list[int], int, dict[str, Any], int], Tensor]) -> Tensor:
        slot = row_input.row.tables[0][0]
        if row_input.start == 0:
            self._slots[slot] = self._model.new_cache()
        with self._adapters.whole(row_input.row.request.adapter):
            return run(row_input.row.tokens[: row_input.start + row_input.take], row_input.start, self._slots[slot], keep)

    def release(self) -> None:
        """Free the caches."""
        self._slots.clear()


def _tensor_bytes(value: Any, seen: set[int]) -> int:
    """Bytes of all tensors in a cache object, whatever its structure."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, Tensor):
        return value.numel() * value.itemsize
    if isinstance(value, dict):
        return sum(_tensor_bytes(item, seen) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(_tensor_bytes(item, seen) for item in value)
    if type(value).__module__.startswith("transformers") and hasattr(value, "__dict__"):
        return _tensor_bytes({k: v for k, v in vars(value).items() if "config" not in k}, seen)
    return 0
