"""An image of our own, to try a model with."""

from __future__ import annotations

from PIL import Image


def trial_image() -> Image.Image:
    """Gradients in three directions, 96 × 72 pixels: all of its parts differ."""
    image = Image.new("RGB", (96, 72))
    image.putdata([(x * 255 // 95, y * 255 // 71, (x + 2 * y) % 256) for y in range(72) for x in range(96)])
    return image
