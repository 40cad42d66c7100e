"""The base of the engine's sessions: capabilities, the tracker, and the outcomes of steps until they are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tgi_core.backend import (
    BackendError,
    Capabilities,
    Capacity,
    Cleared,
    Determinism,
    Encoded,
    Feature,
    Grant,
    Handle,
    InvalidRequest,
    Kernel,
    MaskSource,
    Mixing,
    Request,
    Row,
    Rows,
    Step,
    WarmupPlan,
    hookimpl,
)
from tgi_core.backend.batch_tracker import BatchTracker, LaunchedStep, RowInput, RowState
from tgi_core.backend.sampling_checks import check_sampling
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.runner import Runner, SeesWholePrompts, TakesImages
from tgi_core.engine.sampler import FIELDS

_FEATURES = frozenset({Feature.LOGPROBS, Feature.PROMPT_LOGPROBS, Feature.TENSOR_PARALLEL, Feature.TOP_N})
"""Features of every session. A model that cannot be divided refuses a group of ranks when it is opened."""


class BaseSession(ABC):
    """One rank's session over one model; subclasses run steps on a device."""

    def __init__(
        self,
        runner: Runner,
        shape: ModelShape,
        masks: MaskSource | None,
        adapters: tuple[str, ...] = (),
        kernels: tuple[Kernel, ...] = (),
    ) -> None:
        self._runner, self._shape, self._masks = runner, shape, masks
        asked = runner.cache_dtype
        fp8 = () if asked == "auto" else (Kernel("kv cache", asked, "as --kv-cache-dtype says"),)
        self._capabilities = Capabilities(
            features=_FEATURES | runner.features | _features_of(masks, adapters),
            sampling=FIELDS,
            block_sizes=runner.block_sizes,
            mixing=Mixing.EAGER,
            determinism=Determinism.CORE,
            vocab_size=shape.vocab_size,
            max_positions=shape.max_positions,
            adapters=adapters,
            kernels=kernels + runner.kernels + fp8,
            cache_dtype=asked,
            whole_images=isinstance(runner, TakesImages) and runner.whole_images,
            whole_prompts=isinstance(runner, SeesWholePrompts) and runner.whole_prompts,
        )
        self._capacity: Capacity | None = None
        self._tracker: BatchTracker | None = None
        self._outcomes: dict[int, Rows | BackendError] = {}
        self._failed: set[int] = set()
        self._uncut: dict[int, RowState] = {}
        """By id, rows with images whose prompts go on, if images run whole."""
        self._steps = 0

    def declare(self, **fields: Any) -> None:
        """Set fields of the capabilities that only the session's opener knows."""
        self._capabilities = replace(self._capabilities, **fields)

    @hookimpl
    def capabilities(self) -> Capabilities:
        """The capabilities of this session."""
        return self._capabilities

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Start new requests along with a live batch."""
        self._make_ready()
        for request in batch:
            check_sampling(request)
            if request.media and isinstance(self._runner, TakesImages):
                self._runner.admit_images(request)
        self._check_images(grants)
        return self._launch(self._with_images(self._open_tracker.prefill(batch, cached, grants)))

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Continue live batches, merged into one."""
        self._make_ready()
        self._check_images(grants)
        return self._launch(self._open_tracker.decode(batches, grants))

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Keep the named rows, in the order of the batch."""
        return self._open_tracker.filter(batch, keep)

    @hookimpl
    def clear(self, batch: Handle | None) -> Cleared:
        """Drop one batch, or all."""
        return Cleared(self._open_tracker.clear(batch))

    @hookimpl
    def encode(self, item: bytes) -> Encoded:
        """Compute the embeddings of an image, for steps to come."""
        if isinstance(self._runner, TakesImages):
            self._runner.encode_image(item)
        return Encoded()

    @abstractmethod
    def _make_ready(self) -> None:
        """Prepare for a step call, before the tracker changes. Raises DeviceLost."""

    @abstractmethod
    def _launch(self, launch: LaunchedStep) -> Step:
        """Launch a step that the tracker has accepted."""

    @property
    def runner(self) -> Runner:
        """The runner of the model."""
        return self._runner

    @property
    def shape(self) -> ModelShape:
        """The sizes of the model."""
        return self._shape

    @property
    def _open_tracker(self) -> BatchTracker:
        if self._tracker is None:
            raise InvalidRequest("the session is not warmed up, or closed")
        return self._tracker

    def _check_images(self, grants: tuple[Grant, ...]) -> None:
        """Raises InvalidRequest for a grant with which a row's step would end inside an image that runs whole."""
        for grant in grants if self._uncut else ():
            row = self._uncut.get(grant.request_id)
            if row is not None and grant.take and isinstance(self._runner, TakesImages):
                self._runner.check_images(row.request, row.computed + grant.take)

    def _with_images(self, launch: LaunchedStep) -> LaunchedStep:
        """Keep the new rows whose images must not be cut by later steps."""
        if self._capabilities.whole_images:
            rows = [*self._uncut.values(), *(row_input.row for row_input in launch.row_inputs)]
            live = self._open_tracker.live_ids
            self._uncut = {
                row.request.id: row for row in rows if row.request.media and row.prompt_left and row.request.id in live
            }
        return launch

    def _check_plan(self, plan: WarmupPlan) -> None:
        """Raises InvalidRequest on a second warmup or an impossible plan."""
        if self._capacity is not None:
            raise InvalidRequest("the session is warmed up already")
        sizes = self._capabilities.block_sizes
        if sizes and plan.block_size is not None and plan.block_size not in sizes:
            raise InvalidRequest(f"block size {plan.block_size} is not among {sizes}")

    def _promise(self, capacity: Capacity) -> Capacity:
        """Create the tracker with these limits."""
        self._capacity = capacity
        self._tracker = BatchTracker(self._capabilities, capacity)
        return capacity

    def _taken(self, step: Step) -> Rows:
        """The outcome of a step that is done; each is read once. Raises InvalidRequest, or what the step failed with."""
        outcome = self._outcomes.pop(step.id, None)
        if outcome is None:
            raise InvalidRequest(f"step {step.id} was read before, or never launched")
        self._outcomes = {id: item for id, item in self._outcomes.items() if id > step.id}  # older ones will not be read
        if isinstance(outcome, BackendError):
            self._open_tracker.kill(step)
            raise outcome
        return outcome

    def _going(self, launch: LaunchedStep, unread: Iterable[LaunchedStep] = ()) -> list[RowInput]:
        """The work of a step without failed rows. Those skip every step until the core filters them away; `unread` are steps launched
        before that."""
        if not self._failed:
            return list(launch.row_inputs)
        self._failed &= self._open_tracker.live_ids | {
            row_input.row.request.id for item in (launch, *unread) for row_input in item.row_inputs
        }
        return [row_input for row_input in launch.row_inputs if row_input.row.request.id not in self._failed]

    def _keep(self, row_input: RowInput, row: Row) -> None:
        """Record a row's result of a step."""
        if row_input.drafts:
            row_input.row.accept(row.tokens)
        else:
            row_input.row.tokens.extend(row.tokens)
        if row.fault is not None:
            self._failed.add(row.request_id)


def _features_of(masks: MaskSource | None, adapters: tuple[str, ...]) -> frozenset[Feature]:
    """Features that depend on the options of the session."""
    return frozenset({Feature.MASKS} if masks else ()) | frozenset({Feature.LORA} if adapters else ())
