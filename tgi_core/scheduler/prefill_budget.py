"""The prefill budget of a step, and the size of prompt chunks on devices that pad them to a few sizes, `Capacity.takes`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from tgi_core.blocks import UNLIMITED
from tgi_core.scheduler.prefix import ImageSpan


def padded_size(take: int, sizes: tuple[int, ...]) -> int:
    """Return the number of tokens that a device computes for `take` tokens of a prompt: full chunks of the largest size, and the
    smallest size that holds the rest. Without sizes, `take` itself."""
    if not sizes:
        return take
    whole, rest = divmod(take, sizes[-1])
    return whole * sizes[-1] + (sizes[bisect_left(sizes, rest)] if rest else 0)


def chunk_size(left: int, room: int, sizes: tuple[int, ...]) -> int:
    """Return how many of the `left` tokens of a prompt to run where `room` computed tokens are left: all of them if they fit with
    their padding, else the largest size that fits, which needs none; 0 if no size fits. Without sizes, as many as fit."""
    if padded_size(left, sizes) <= room:
        return left
    if not sizes:
        return max(0, room)
    return max((size for size in sizes if size <= room), default=0)


def image_left(start: int, images: Iterable[ImageSpan]) -> int:
    """Return how many tokens from `start` on belong to the image there; 0 if there is none."""
    return next((image.end - start for image in images if image.start <= start < image.end), 0)


def keep_images_whole(start: int, take: int, room: int, images: Iterable[ImageSpan]) -> int:
    """Return how many tokens of a prompt to run from `start` on, at most `take`, so that no image is cut: those before the image in which
    they would end. An image at `start` is run up to its end if the step has `room` for it; else 0, and it must wait."""
    for image in images:
        if image.start < start + take < image.end:
            left = image.end - start
            return image.start - start if image.start > start else left if left <= room else 0
    return take


def images_begun(start: int, take: int, images: Iterable[ImageSpan]) -> list[int]:
    """Return where the images begin that begin in the `take` tokens from `start` on."""
    return [image.start for image in images if start <= image.start < start + take]


@dataclass(slots=True)
class PrefillBudget:
    """What is left of a step for prompts: `tokens` within the step's limit, and `computed` tokens that the device may compute,
    padding included, when it pads to `sizes`; and how many `images` may begin in it, for each of which the vision tower runs."""

    tokens: int
    computed: int
    sizes: tuple[int, ...]
    images: int = UNLIMITED

    @property
    def least(self) -> int:
        """Number of tokens that the device computes for the shortest part of a prompt."""
        return padded_size(1, self.sizes)

    @property
    def full(self) -> bool:
        """Whether no part of any prompt fits."""
        return self.tokens <= 0 or self.computed < self.least

    def holds(self, take: int) -> bool:
        """Return whether `take` tokens fit with their padding."""
        return take <= self.tokens and padded_size(take, self.sizes) <= self.computed

    def chunk_size(self, left: int, kept: int = 0) -> int:
        """Return how many of the `left` tokens of a prompt to run, if `kept` computed tokens remain for others; 0 if none fit."""
        return max(0, min(chunk_size(left, self.computed - kept, self.sizes), self.tokens))

    def before_images(self, start: int, take: int, images: Iterable[ImageSpan]) -> int:
        """Return how many of the `take` tokens of a prompt from `start` on come before the first image that must wait."""
        begun = images_begun(start, take, images)
        return begun[self.images] - start if len(begun) > self.images else take

    def spend(self, take: int, images: int = 0) -> None:
        """Spend the budget of `take` tokens of one prompt, in which so many `images` begin."""
        self.images -= images
        self.tokens -= take
        self.computed -= padded_size(take, self.sizes)
