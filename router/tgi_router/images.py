"""Images in requests: `data:` URLs, in messages and in TGI's Markdown form. The router decodes no image; a shard's worker does."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tgi_core.config import Settings
from tgi_core.media.digest import image_digest
from tgi_core.media.errors import ImageRejected, MediaBusy
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.scheduler.prefix import ImageSpan
from tgi_router.errors import ModelOverloaded, ValidationFailed
from tgi_router.fetching import ImageFetcher

MOST_IMAGES = 32
"""Maximum number of images per prompt."""
MOST_BYTES = 32 << 20
"""Maximum size of the encoded images of a prompt, in bytes: they are kept until its request ends."""

TokenizeImages = Callable[[MultimodalPrompt], Awaitable[PromptTokens]]
"""Tokenizes prompts with images; see `Generator.tokenize_images`."""

_MARKDOWN = re.compile(r"!\[[^\]\n]{0,200}\]\(((?:data:|https?://)[^)\s]*)\)")
_DATA = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),", re.ASCII)
_LONGEST_TYPE = 40


def image_of_url(url: str) -> bytes:
    """Return the encoded image of a `data:` URL. Raises ValidationFailed."""
    head = _DATA.match(url)
    if head is None:
        raise ValidationFailed("images must be `data:` URLs; this server fetches none (--allowed-media-domains)")
    kind, options = head[1].lower(), head[2].lower()
    if not kind.startswith("image/"):
        raise ValidationFailed(f"image URLs must have a type of images, such as image/png. Given: {kind[:_LONGEST_TYPE]!r}")
    if ";base64" not in options:
        raise ValidationFailed("image URLs must be encoded in base64")
    try:
        data = b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError):
        raise ValidationFailed("an image URL is not valid base64") from None
    if not data:
        raise ValidationFailed("an image is empty")
    return data


def split_markdown(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split a text at its images, `![](URL)`. Returns the texts around them, and the URLs."""
    pieces = _MARKDOWN.split(text)
    return tuple(pieces[::2]), tuple(pieces[1::2])


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """The token ids of a prompt, its encoded images, and where these are among the tokens."""

    ids: tuple[int, ...]
    images: tuple[bytes, ...] = ()
    spans: tuple[ImageSpan, ...] = ()


class MultimodalTokenizing:
    """Reads the images of prompts, those in their URLs and those on hosts from which the operator lets them be fetched, and lets a shard
    tokenize the prompts."""

    def __init__(self, settings: Settings, tokenize: TokenizeImages) -> None:
        self._fetcher = ImageFetcher(settings.allowed_media_domains, min(settings.max_image_fetch_size, MOST_BYTES))
        self._tokenize = tokenize

    async def tokenize(self, texts: tuple[str, ...], urls: Sequence[str], special: bool) -> TokenizedPrompt:
        """Tokenize a prompt; see `MultimodalPrompt`. Raises ValidationFailed, ModelOverloaded."""
        if len(urls) > MOST_IMAGES:
            raise ValidationFailed(f"a prompt may have up to {MOST_IMAGES} images. Given: {len(urls)}")
        images = list[bytes]()
        for url in urls:
            images.append(await self._image(url))
            if sum(map(len, images)) > MOST_BYTES:
                raise ValidationFailed(f"the images of a prompt may have up to {MOST_BYTES} bytes in all")
        try:
            tokens = await self._tokenize(MultimodalPrompt(texts, tuple(images), special))
        except ImageRejected as error:
            raise ValidationFailed(str(error)) from error
        except MediaBusy:
            raise ModelOverloaded from None
        digests = map(image_digest, images)
        spans = tuple(ImageSpan(start, end, digest) for (start, end), digest in zip(tokens.spans, digests, strict=True))
        return TokenizedPrompt(tokens.ids, tuple(images), spans)

    async def _image(self, url: str) -> bytes:
        return await self._fetcher.fetch(url) if self._fetcher.fetches(url) else image_of_url(url)
