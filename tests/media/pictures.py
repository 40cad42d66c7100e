"""Pictures in every form that clients send, sound and hostile."""

from __future__ import annotations

import base64
import gzip
import io
import struct
import zlib
from collections.abc import Iterator

from PIL import Image

from tests.engine.image_models import image


def encoded(picture: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    """The file of a picture."""
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def sound() -> Iterator[tuple[str, bytes]]:
    """Files that are images, however unusual."""
    plain = image(1)
    for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP"):
        yield kind, encoded(plain, kind)
    for mode in ("1", "L", "LA", "P", "RGBA"):
        yield f"PNG in {mode}", encoded(plain.convert(mode))
    yield "16 bits", encoded(plain.convert("L").convert("I").point(lambda value: value * 257).convert("I;16"))
    yield "CMYK", encoded(plain.convert("CMYK"), "JPEG")
    yield "one pixel", encoded(image(1, 1, 1))
    yield "a line", encoded(image(1, 300, 1))
    turned = Image.Exif()
    turned[0x0112] = 6
    yield "EXIF", encoded(plain, "JPEG", exif=turned)
    yield "animated GIF", encoded(plain, "GIF", save_all=True, append_images=[image(2), image(3)])
    yield "animated WEBP", encoded(plain, "WEBP", save_all=True, append_images=[image(2)])
    yield "animated PNG", encoded(plain, "PNG", save_all=True, append_images=[image(2)])
    yield "transparent palette", encoded(plain.convert("P"), transparency=0)
    yield "polyglot", encoded(plain) + b"<script>alert(1)</script>"
    yield "progressive", encoded(plain, "JPEG", progressive=True)
    yield "interlaced", encoded(plain, interlace=1)


def hostile() -> Iterator[tuple[str, bytes]]:
    """Files that must be refused."""
    for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP"):
        whole = encoded(image(1, 90, 90), kind)
        yield f"half a {kind}", whole[: len(whole) // 2]
        yield f"the beginning of a {kind}", whole[:20]
    yield "a bomb of zeros", png(16_000, 16_000)
    yield "wider than allowed", png(30_000, 1)
    yield "higher than allowed", png(1, 30_000)
    yield "30,000 × 30,000", png(30_000, 30_000)
    yield "no width", png(0, 10)
    yield "the largest numbers", png((1 << 31) - 1, (1 << 31) - 1)
    yield "a GIF of 65,535 × 65,535", b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + b";"
    yield "SVG", b'<svg xmlns="http://www.w3.org/2000/svg"><image href="http://127.0.0.1/"/></svg>'
    yield "HTML", b"<html><img src=x></html>"
    yield "PDF", b"%PDF-1.7\n1 0 obj\n<<>>\nendobj"
    yield "EPS", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run"
    yield "TIFF", encoded(image(1), "TIFF")
    yield "ICO", encoded(image(1), "ICO")
    yield "a zip file", b"PK\x03\x04" + bytes(100)
    yield "a sound", b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(40)
    yield "a video", b"\x00\x00\x00\x18ftypmp42" + bytes(60)
    yield "zeros", bytes(1000)
    yield "a text", b"hello" * 100
    yield "one byte", b"\x89"
    yield "a wrong checksum", encoded(image(1)).replace(b"IDAT", b"IDAX", 1)
    yield "a chunk of text that unpacks to 100 MB", _chunk_bomb(b"zTXt")
    yield from _more_hostile()


def _more_hostile() -> Iterator[tuple[str, bytes]]:
    """Bombs, polyglots, and forms that browsers or viewers read but this server does not."""
    whole = encoded(image(1))
    yield "a colour profile that unpacks to 100 MB", _chunk_bomb(b"iCCP")
    yield "a JPEG of 65,500 × 65,500", _jpeg(65_500, 65_500)
    yield "a BMP of 2,147,483,647 × 2,147,483,647", _bmp((1 << 31) - 1)
    yield "half of one pixel", encoded(image(1, 1, 1))[:45]
    yield "half a JPEG in CMYK", encoded(image(1, 90, 90).convert("CMYK"), "JPEG")[:900]
    yield "EXIF without a picture", b"\xff\xd8\xff\xe1\x00\x10Exif\0\0MM\0*\0\0\0\x08\xff\xd9"
    yield (
        "half an animation's first frame",
        encoded(image(1, 90, 90), "GIF", save_all=True, append_images=[image(2, 90, 90)])[:2000],
    )
    yield "a PDF around a PNG", b"%PDF-1.7\n" + whole + b"\n%%EOF"
    yield "HTML around a PNG", b"<script>alert(1)</script>" + whole
    yield "a script that begins as a GIF", b"GIF89a=1;alert(document.cookie)//"
    yield "a JPEG with the signature of a PNG", b"\x89PNG\r\n\x1a\n" + encoded(image(1), "JPEG")
    yield "a PNG in gzip", gzip.compress(whole)
    yield "a PNG in base64", base64.b64encode(whole)
    yield (
        "SVG that reads a file",
        b'<?xml version="1.0"?><!DOCTYPE s [<!ENTITY x SYSTEM "file:///etc/passwd">]><svg><text>&x;</text></svg>',
    )
    yield "SVG in gzip", gzip.compress(b'<svg xmlns="http://www.w3.org/2000/svg"/>')
    yield "AVIF", b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf" + bytes(60)
    yield "JPEG 2000", encoded(image(1), "JPEG2000")
    yield "PPM", encoded(image(1), "PPM")


def png(width: int, height: int) -> bytes:
    """A PNG of zeros that claims this size, with the data of at most a few rows."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = zlib.compress(bytes(min(width + 1, 1 << 20) * 2), 9)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk_bomb(kind: bytes) -> bytes:
    whole, text = encoded(image(1)), zlib.compress(bytes(100 << 20), 9)
    return whole[:33] + _chunk(kind, b"k\0\0" + text) + whole[33:]


def _jpeg(width: int, height: int) -> bytes:
    """A JPEG that claims this size."""
    whole = encoded(image(1), "JPEG")
    at = whole.index(b"\xff\xc0") + 5
    return whole[:at] + struct.pack(">HH", height, width) + whole[at + 4 :]


def _bmp(side: int) -> bytes:
    """A BMP that claims this size."""
    whole = encoded(image(1), "BMP")
    return whole[:18] + struct.pack("<ii", side, side) + whole[26:]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
