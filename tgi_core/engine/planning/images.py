"""Plans the memory of images that layers look at."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from transformers import PreTrainedModel

from tgi_core.backend import Kernel
from tgi_core.engine.media.cross import CrossVision
from tgi_core.engine.media.opening import SHARE
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.planning.runners import PlannedRunner
from tgi_core.media.features import ImageFeatures


def plan_images_in_layers(runner: PlannedRunner, model: PreTrainedModel, free_bytes: int) -> ModelShape:
    """Let a runner set aside what a load does for the keys and values of images, of `free_bytes` beside the weights; returns its sizes.
    `model` has no weights, and its attention is this engine's. Raises UnsupportedVision, ValueError, and what the model raises."""
    scale = runner.shape.dtype.itemsize / model.dtype.itemsize
    tower = CrossVision(model, int(model.config.image_token_index), int(free_bytes / scale) // SHARE)
    tower.embeddings(_blank_image(model).to_bytes(), b"")
    runner.shape = replace(runner.shape, image_bytes=round(tower.image_bytes * scale))
    runner.kernels = (*runner.kernels, Kernel("images", "cross attention", "its processor is tried at load"))
    return runner.shape


def _blank_image(model: PreTrainedModel) -> ImageFeatures:
    """What a processor makes of an image: tiles [1, 1, tiles, channels, height, width]."""
    vision = model.config.vision_config
    tiles, size = vision.max_num_tiles, vision.image_size
    return ImageFeatures(
        1,
        {
            "pixel_values": np.zeros((1, 1, tiles, vision.num_channels, size, size), np.float32),
            "aspect_ratio_ids": np.ones((1, 1), np.int64),
            "aspect_ratio_mask": np.ones((1, 1, tiles), np.int64),
        },
    )
