"""Decodes images that clients send. Nothing here trusts them: sizes are checked before pixels are decoded."""

from __future__ import annotations

import warnings
from io import BytesIO

from PIL import Image, ImageOps, UnidentifiedImageError

from tgi_core.media.errors import ImageRejected

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "WEBP")
"""Formats that are decoded."""
MAX_PIXELS = 40_000_000
"""Maximum size of an image, in pixels: a decoded pixel takes up to four bytes."""
MAX_SIDE = 16_384
"""Maximum width and height, in pixels."""

_DECODING_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    Image.DecompressionBombError,
)
"""Exceptions of Pillow for damaged files."""


def decode_image(data: bytes) -> Image.Image:
    """The image in RGB, turned upright as its EXIF data says; transparent pixels are shown on white, and of an animation the first frame.
    Raises ImageRejected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            opened = Image.open(BytesIO(data), formats=FORMATS)
        except UnidentifiedImageError:
            raise ImageRejected(f"not an image in one of the formats {', '.join(FORMATS)}") from None
        except _DECODING_ERRORS as error:
            raise ImageRejected(f"cannot be decoded: {_one_line(error)}") from error
        width, height = opened.size
        if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
            raise ImageRejected(f"{width} × {height} pixels; at most {MAX_SIDE} per side and {MAX_PIXELS:,} in all are allowed")
        try:
            opened.load()
            return _rgb(ImageOps.exif_transpose(opened))
        except _DECODING_ERRORS as error:
            raise ImageRejected(f"cannot be decoded: {_one_line(error)}") from error


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.has_transparency_data:
        over = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", over.size, "white"), over).convert("RGB")
    if image.mode.startswith("I"):  # 16 bits per channel
        image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    return image.convert("RGB")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:100] or type(error).__name__
