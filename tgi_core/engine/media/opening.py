"""Whether a model's images can be used, found out on an image of our own before serving."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tgi_core.backend import Feature, Kernel, Request
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.comparison import MODEL_ERRORS, relative_difference
from tgi_core.engine.media.cross import CrossVision, ImagesInLayers
from tgi_core.engine.media.placing import ImagesInPrompts
from tgi_core.engine.media.tower import UnsupportedVision, VisionTower, item_digest, runs
from tgi_core.engine.models.build import text_config
from tgi_core.engine.models.loading import looks_at_images, sees_images
from tgi_core.engine.ragged import RaggedRunner
from tgi_core.engine.self_check import tolerance
from tgi_core.errors import one_line
from tgi_core.media.errors import ImageRejected

_log = logging.getLogger("tgi_core.engine")

_PART = "images"
SHARE = 8
_AROUND = (3, 5, 7, 11)
"""Token ids before and after the image of the check."""


@dataclass(frozen=True, slots=True)
class ImageCheck:
    """A prompt with an image, and the model's own logits [tokens, vocabulary] for it."""

    ids: tuple[int, ...]
    item: bytes
    placeholder_id: int
    expected: Tensor
    sees_ahead: bool
    """Whether tokens of an image see those after them in it."""

    @property
    def row(self) -> int:
        """The most placeholders in a row."""
        return max(end - start for start, end in runs(np.flatnonzero(np.asarray(self.ids) == self.placeholder_id)))


def plan_images(model: PreTrainedModel, directory: Path, whole_prompts: bool = False) -> ImageCheck | Kernel | None:
    """How to check the images of a model once it has a runner, or why it takes none; None for a model of text alone.
    `whole_prompts`: tokens of its prompts see each other."""
    if not sees_images(model.config):
        return None
    try:
        return _check(model, directory, whole_prompts)
    except UnsupportedVision as reason:
        return refused(model, str(reason))


def _check(model: PreTrainedModel, directory: Path, whole_prompts: bool) -> ImageCheck:
    """Run the model as transformers does, with an image between a few tokens. Raises UnsupportedVision."""
    try:
        from tgi_core.media.processor import MediaProcessor, NoProcessor
        from tgi_core.media.trial import trial_image
    except ImportError as error:
        raise UnsupportedVision(f"{error.name} is not installed") from error
    try:
        processor = MediaProcessor(directory)
        features = processor.features(trial_image())
    except (NoProcessor, ImageRejected) as error:
        raise UnsupportedVision(str(error)) from error
    ids = (*_AROUND, *[processor.placeholder_id] * features.tokens, *_AROUND)
    tower = VisionTower(model, processor.placeholder_id)
    given = torch.tensor([ids], device=model.device)
    try:
        with torch.inference_mode():
            sees_ahead = not whole_prompts and tower.sees_ahead(given, features)
            expected: Tensor = model(use_cache=True, **tower.arguments(given, [features])).logits[0]
    except (ValueError, *MODEL_ERRORS) as error:
        raise UnsupportedVision(f"it does not run with an image: {one_line(error)}") from error
    return ImageCheck(ids, features.to_bytes(), processor.placeholder_id, expected, sees_ahead)


def offer_images(runner: RaggedRunner, model: PreTrainedModel, check: ImageCheck, free_bytes: int) -> Kernel:
    """Let the runner take images if its logits for the check are the model's own, the same on all ranks. Of `free_bytes` of memory, a share
    is for images that layers look at. Returns what to report."""
    try:
        tower = (
            CrossVision(model, check.placeholder_id, free_bytes // SHARE)
            if looks_at_images(model.config)
            else VisionTower(model, check.placeholder_id)
        )
        tower.embeddings(check.item, item_digest(check.item))
        if check.sees_ahead and not runner.provider.sees_ahead:
            raise UnsupportedVision(
                f"tokens of its images see each other, which {runner.provider.name} attention does not compute"
            )
        longest = max(check.row, _window(model)) if check.sees_ahead else 0
        runner.images = (
            ImagesInLayers(tower)
            if isinstance(tower, CrossVision)
            else ImagesInPrompts(tower, model.get_input_embeddings(), longest)
        )
        found = _logits(runner, check)
        difference = relative_difference(found[:, : check.expected.shape[1]], check.expected[-len(found) :])
        reason = (
            ""
            if difference <= tolerance(runner.shape.dtype, runner.cache_dtype)
            else f"logits differ from the model's own by {difference:.2g} of their norm"
        )
    except (UnsupportedVision, ValueError, *MODEL_ERRORS) as error:
        reason = one_line(error)
    runner.release()
    if not runner.agree(int(not reason)):
        runner.images = None
        return refused(model, reason or "another rank cannot")
    runner.features |= {Feature.MEDIA}
    runner.whole_images = check.sees_ahead
    if isinstance(tower, CrossVision):
        runner.shape = replace(runner.shape, image_bytes=tower.image_bytes)
        runner.drafts_refusal = "layers that look at images compute several tokens of a row in another order than one"
    name = "cross attention" if isinstance(tower, CrossVision) else "embeddings in place of tokens"
    return Kernel(_PART, name, f"{type(model).__name__}'s own vision tower")


def _window(model: PreTrainedModel) -> int:
    """The size of sliding windows. Whether they hide parts of a longer image depends on the model, so that must have been checked."""
    return getattr(text_config(model.config), "sliding_window", None) or sys.maxsize


def refused(model: PreTrainedModel, reason: str) -> Kernel:
    """What to report of a model that takes no images."""
    _log.warning("%s takes no images: %s", model.config.model_type, reason)
    return Kernel(_PART, "refused", reason)


def _logits(runner: RaggedRunner, check: ImageCheck) -> Tensor:
    """Logits [last tokens, vocabulary] of the check's last tokens, run in chunks that divide the image if that is possible; of the last one
    if a prompt runs whole."""
    size = runner.block_sizes[0]
    blocks = tuple(range(1, -(-len(check.ids) // size) + 1))
    runner.use_cache(len(blocks), size)
    request = Request(1, check.ids, len(check.ids), 0, (blocks,), 1, media=(check.item,))
    row, last = RowState(request, list(check.ids), 0, (list(blocks),)), len(check.ids) - len(_AROUND)
    cut = len(_AROUND) // 2 if check.sees_ahead else len(check.ids) // 2
    ends = [0, cut, *range(last + 1, len(check.ids) + 1)]
    if runner.whole_prompts:
        ends = [0, len(check.ids)]
    found = [runner.run([RowInput(row, start, end - start, yields=True)]).last[-1].clone() for start, end in pairwise(ends)]
    return torch.stack(found[-len(_AROUND) :]).to(check.expected.device)
