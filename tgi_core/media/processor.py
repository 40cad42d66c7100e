"""A model's processor, as transformers has it: from a text with placeholders, and its images, to token ids and features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError
from PIL import Image
from transformers import AutoProcessor

from tgi_core.errors import one_line
from tgi_core.media.errors import ImageRejected
from tgi_core.media.features import ImageFeatures

LOOKED_AT = "cross_attention_mask"
"""What the processor makes if layers of the model look at images: which tokens see which tiles. Features have a row for their image."""
_MARKERS = ("text before the image", "text after the image")
"""Texts that no chat template has of its own."""
_TEXT_FIELDS = frozenset({"input_ids", "attention_mask", "labels"})


class NoProcessor(Exception):
    """A model directory has no processor of images; the message says why."""


class MediaProcessor:
    """The processor of one model. `placeholder` is the text that stands for an image in a prompt, `placeholder_id` the token that stands
    for one of its embeddings. `inline` is what is put between texts for an image: the placeholder, with the marks around it that the
    model's chat template writes, such as Qwen's `<|vision_start|>` and `<|vision_end|>`."""

    def __init__(self, directory: Path) -> None:
        """Raises NoProcessor."""
        try:
            processor: Any = AutoProcessor.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # transformers raises whatever its many processors raise
            raise NoProcessor(f"its processor cannot be loaded: {one_line(error)}") from error
        if getattr(processor, "image_processor", None) is None:
            raise NoProcessor("its processor takes no images")
        self._processor, self._tokenizer = processor, processor.tokenizer
        placeholder = getattr(processor, "image_token", None)
        if not isinstance(placeholder, str):
            raise NoProcessor("its processor does not say which token stands for an image")
        self.placeholder = placeholder
        self.placeholder_id = self._find_placeholder_id()
        self.inline = self._find_inline()

    def features(self, image: Image.Image) -> ImageFeatures:
        """The features of one image. Raises ImageRejected."""
        made = self._run(self.placeholder, [image], special=False)
        count = int(np.count_nonzero(made["input_ids"] == self.placeholder_id))
        tensors = {name: value for name, value in made.items() if name not in _TEXT_FIELDS}
        if LOOKED_AT in tensors:
            tensors[LOOKED_AT] = np.ascontiguousarray(tensors[LOOKED_AT][:, -1:])
        return ImageFeatures(count, tensors)

    def ids(self, text: str, images: Sequence[Image.Image], special: bool) -> tuple[int, ...]:
        """The token ids of a text with a placeholder per image; `special`: with the tokens that the tokenizer adds. Raises
        ImageRejected."""
        return tuple(map(int, self._run(text, images, special)["input_ids"][0]))

    def _find_placeholder_id(self) -> int:
        """The token that stands for an embedding. In a text, another one may stand for the image (Gemma 3)."""
        several = getattr(self._processor, "image_token_ids", None)
        only = several[0] if isinstance(several, list) and len(several) == 1 else None
        own = getattr(self._processor, "image_token_id", None) if only is None else only
        return own if isinstance(own, int) else int(self._tokenizer.convert_tokens_to_ids(self.placeholder))

    def _find_inline(self) -> str:
        """The placeholder as the chat template writes it between two texts; alone if there is no template, or it moves images elsewhere."""
        first, second = ({"type": "text", "text": word} for word in _MARKERS)
        try:
            written = self._processor.apply_chat_template([{"role": "user", "content": [first, {"type": "image"}, second]}])
        except (TemplateError, TypeError, ValueError):
            return self.placeholder
        between = written.partition(_MARKERS[0])[2].partition(_MARKERS[1])[0]
        return between if between.count(self.placeholder) == 1 else self.placeholder

    def _run(self, text: str, images: Sequence[Image.Image], special: bool) -> dict[str, np.ndarray]:
        try:
            made = self._processor(
                text=[text], images=[list(images)] if images else None, add_special_tokens=special, return_tensors="pt"
            )
        except Exception as error:  # as above
            raise ImageRejected(f"the processor rejects it: {one_line(error)}") from error
        return {name: value.numpy() for name, value in made.items() if hasattr(value, "numpy")}
