"""The contract's rules for images in prompts: which items fit a model and a prompt, and which steps cut an image.

They share no code with `tgi_core.media`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from tgi_conformance.golden import Golden
from tgi_conformance.verdict import SuiteFault
from tgi_core.backend import Capabilities, Feature, Request

_WIDTHS = {"F32": 4, "I64": 8}
"""Bytes per number, by the names of a safetensors file's dtypes, as far as golden items have them."""


@dataclass(frozen=True, slots=True)
class ItemForm:
    """What all items for a model have in common: how many tokens an image has, and dtype and shape of each tensor by name."""

    tokens: int
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]


def read_form(item: bytes) -> ItemForm | None:
    """Return the form of an item of `Request.media`, or None if it is damaged."""
    try:
        start = 8 + int.from_bytes(item[:8], "little")
        header = json.loads(item[8:start])
        tokens, end, tensors = int(header.pop("__metadata__")["tokens"]), 0, []
        for name, entry in sorted(header.items(), key=lambda pair: pair[1]["data_offsets"]):
            shape, begin = tuple(map(int, entry["shape"])), end
            end += _WIDTHS[entry["dtype"]] * math.prod(shape)
            if entry["data_offsets"] != [begin, end]:
                return None
            tensors.append((name, entry["dtype"], shape))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return ItemForm(tokens, tuple(tensors)) if start + end == len(item) and tokens > 0 else None


def written(form: ItemForm, data: bytes) -> bytes:
    """Return an item of this form whose tensors have the last bytes of `data`."""
    header: dict[str, Any] = {"__metadata__": {"tokens": str(form.tokens)}}
    end = 0
    for name, dtype, shape in form.tensors:
        begin, end = end, end + _WIDTHS[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[len(data) - end :]


@dataclass(frozen=True, slots=True)
class ImageRules:
    """The rules of one model that sees images. `whole`: a step ends between no two tokens of an image."""

    placeholder: int
    form: ItemForm
    whole: bool

    @classmethod
    def of(cls, golden: Golden, capabilities: Capabilities) -> ImageRules | None:
        """Return the rules of a golden checkpoint, or None if its session takes no images. Raises SuiteFault."""
        if golden.placeholder is None or Feature.MEDIA not in capabilities.features:
            return None
        form = read_form(next(iter(golden.images.values())))
        if form is None:
            raise SuiteFault(f"the yardstick is broken, not the backend: an image of {golden.name} is damaged")
        return cls(golden.placeholder, form, capabilities.whole_images)

    def unfit(self, item: bytes) -> str:
        """Return why an item does not fit the model, or ""."""
        form = read_form(item)
        if form is None:
            return "an image is damaged"
        return "" if form == self.form else "an image is not what the model's processor makes"

    def unfit_request(self, request: Request) -> str:
        """Return why the images of a request do not fit the model or its prompt, or "". A prompt without images may have any tokens."""
        placeholders = request.tokens[: request.prompt_len].count(self.placeholder)
        if request.media and len(request.media) * self.form.tokens != placeholders:
            return f"it has {len(request.media)} images of {self.form.tokens} tokens, and {placeholders} placeholders"
        return next(filter(None, map(self.unfit, request.media)), "")

    def images(self, request: Request) -> list[tuple[int, int]]:
        """Return first position and end of each image in a prompt."""
        places = [at for at, token in enumerate(request.tokens[: request.prompt_len]) if token == self.placeholder]
        count = self.form.tokens
        return [(places[at], places[at + count - 1] + 1) for at in range(0, len(request.media) * count, count)]

    def uncut(self, request: Request, end: int) -> int:
        """Return where a step ends that would end at `end`, and runs images whole if it must."""
        inside = (last for first, last in self.images(request) if self.whole and first < end < last)
        return next(inside, end)
