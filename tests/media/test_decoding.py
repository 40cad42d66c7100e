"""Images that clients send are decoded, or refused for a reason that says what is wrong."""

from __future__ import annotations

import pytest
from PIL import Image

from tests.engine.image_models import image
from tests.media.pictures import encoded, hostile, sound
from tgi_core.media.decoding import decode_image
from tgi_core.media.errors import ImageRejected


@pytest.mark.parametrize(("name", "data"), [pytest.param(*each, id=each[0]) for each in sound()])
def test_sound_images(name: str, data: bytes) -> None:
    """All of them become RGB, of their size."""
    made = decode_image(data)
    assert made.mode == "RGB"
    expected = {"one pixel": (1, 1), "a line": (300, 1), "EXIF": (33, 40)}.get(name, (40, 33))
    assert made.size == expected


@pytest.mark.parametrize(("name", "data"), [pytest.param(*each, id=each[0]) for each in hostile()])
def test_hostile_images(name: str, data: bytes) -> None:
    """Each is refused in one line."""
    with pytest.raises(ImageRejected) as caught:
        decode_image(data)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_exact_pixels() -> None:
    """A lossless file has the picture's pixels; transparency is shown on white; 16 bits become 8."""
    plain = image(1)
    assert decode_image(encoded(plain)).tobytes() == plain.tobytes()
    clear = Image.new("RGBA", (2, 2), (255, 0, 0, 0))
    assert decode_image(encoded(clear)).tobytes() == b"\xff" * 12
    deep = plain.convert("L").convert("I").point(lambda value: value * 257).convert("I;16")
    assert decode_image(encoded(deep)).tobytes() == plain.convert("L").convert("RGB").tobytes()
