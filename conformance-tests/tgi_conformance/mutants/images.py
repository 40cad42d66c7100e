"""Sessions of a toy model that sees images: sound ones, and with defects."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tgi_conformance.image_rules import read_form
from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import Capabilities, Encoded, Feature, Grant, Handle, InvalidRequest, Request, Row, Step, hookimpl
from tgi_core.backend.batch_tracker import LaunchedStep, RowInput, RowState
from tgi_core.model_files import read_json

Numbers = tuple[int, ...]
"""What the vision tower makes of an image: a number per token, which the model reads in place of the token's id."""


class Seeing(Sound):
    """The toy model with a vision tower, if its config.json has a placeholder."""

    whole_images = False
    _seen: dict[bytes, Numbers] | None = None
    _row_input: RowInput

    @property
    def seen(self) -> dict[bytes, Numbers]:
        """What is known of images, by `key`."""
        if self._seen is None:
            self._seen = {}
        return self._seen

    @property
    def placeholder(self) -> int | None:
        """The token that stands for an image's; None for a model of text alone."""
        config = read_json(Path(self.options.model) / "config.json") if self.options.model else {}
        return config.get("image_token_id")

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Takes images if the model does."""
        found = super().capabilities()
        features = found.features | ({Feature.MEDIA} if self.placeholder is not None else set())
        return replace(found, features=features, whole_images=self.whole_images and self.placeholder is not None)

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Refuse images that do not fit."""
        if self.placeholder is not None:
            for request in batch:
                if why := self.unfit(request):
                    raise self.refusal(request, why)
                self.check_whole(request, request.cached + request.take)
            self._check_grants(grants)
        return super().prefill(batch, cached, grants)

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Refuse a step that cuts an image, if they run whole."""
        self._check_grants(grants)
        return super().decode(batches, grants)

    @hookimpl
    def encode(self, item: bytes) -> Encoded:
        """Run the tower."""
        if why := self.damaged(item):
            raise InvalidRequest(why)
        self.look(item)
        return Encoded()

    def unfit(self, request: Request) -> str:
        """Why the images of a request do not fit it, or ""."""
        if why := next(filter(None, map(self.damaged, request.media)), ""):
            return why
        count = sum(len(self.look(item)) for item in request.media)
        placeholders = len(self.places(request))
        return f"{count} tokens of images, {placeholders} placeholders" if request.media and count != placeholders else ""

    def damaged(self, item: bytes) -> str:
        """Why an item cannot be read, or ""."""
        form = read_form(item)
        fits = form is not None and form.tensors == (("numbers", "I64", (form.tokens,)),)
        return "" if fits else "an image's features are damaged"

    def refusal(self, request: Request, why: str) -> InvalidRequest:
        """The error of a request."""
        return InvalidRequest(f"request {request.id}: {why}", request_ids=(request.id,))

    def check_whole(self, request: Request, end: int) -> None:
        """Refuse to end a step inside an image, if they run whole."""
        for first, last in self.images(request) if self.whole_images else ():
            if first < end < last:
                raise self.refusal(request, "a step cuts an image")

    def images(self, request: Request) -> Iterator[tuple[int, int]]:
        """First position and end of each image."""
        places, at = self.places(request), 0
        for item in request.media:
            at += len(self.look(item))
            yield places[at - len(self.look(item))], places[at - 1] + 1

    def places(self, request: Request) -> list[int]:
        """Positions of an image's tokens."""
        return [at for at, token in enumerate(request.tokens[: request.prompt_len]) if token == self.placeholder]

    def look(self, item: bytes) -> Numbers:
        """The numbers of an image, kept by its key."""
        key = self.key(item)
        if key not in self.seen:
            self.seen[key] = self.made(item)
        return self.seen[key]

    def key(self, item: bytes) -> bytes:
        """What identifies an image."""
        return item

    def made(self, item: bytes) -> Numbers:
        """The numbers of an image, anew."""
        form = read_form(item)
        tokens = 0 if form is None else form.tokens
        return struct.unpack(f"<{tokens}q", item[len(item) - 8 * tokens :])

    def number(self, row: RowState, position: int) -> int:
        """What the model reads at a placeholder."""
        places = self.places(row.request)
        every = [number for item in self.media(row) for number in self.look(item)]
        return every[places.index(position) % len(every)]

    def media(self, row: RowState) -> tuple[bytes, ...]:
        """The images of a row."""
        return row.request.media

    def _check_grants(self, grants: tuple[Grant, ...]) -> None:
        for grant in grants:
            row = self.row(grant.request_id)
            if row is not None and row.request.media and grant.take:
                self.check_whole(row.request, row.computed + grant.take)

    def _run(self, row_input: RowInput) -> Row:
        self._row_input = row_input
        return super()._run(row_input)

    def _write(self, row: RowState, position: int) -> int:
        if not row.request.media or position >= row.request.prompt_len or row.tokens[position] != self.placeholder:
            return super()._write(row, position)
        id, row.tokens[position] = row.tokens[position], self.number(row, position)
        try:
            return super()._write(row, position)
        finally:
            row.tokens[position] = id


@mutant("images")
class Images(Seeing):
    """A model that takes images."""


@mutant("whole-images")
class WholeImages(Seeing):
    """A model whose images' tokens see each other, and which encodes none ahead."""

    whole_images = True
    encode = None  # type: ignore[assignment]


@mutant("text-model-drops-images", "media.refusal")
class TextModelDropsImages(Seeing):
    """A backend that takes images drops them silently for a model without a vision tower."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Drop them."""
        if self.placeholder is None:
            batch = tuple(replace(request, media=()) for request in batch)
        return super().prefill(batch, cached, grants)


@mutant("placeholders-stay", "media.tokens", "media.refusal")
class PlaceholdersStay(Seeing):
    """The tower runs, and its result goes nowhere: the model reads the embeddings of the placeholders (a captured graph whose input tokens
    are copied, and whose embeddings are not)."""

    def number(self, row: RowState, position: int) -> int:
        """The token's own."""
        return row.tokens[position]


@mutant("images-reversed", "media.order")
class ImagesReversed(Seeing):
    """Images are popped from the end of a list."""

    def media(self, row: RowState) -> tuple[bytes, ...]:
        """The last one first."""
        return row.request.media[::-1]


@mutant("first-image-for-all", "media.order")
class FirstImageForAll(Seeing):
    """The embeddings of a prompt's first image are copied to all placeholders (broadcast, as they have the same shape)."""

    def media(self, row: RowState) -> tuple[bytes, ...]:
        """The first one only."""
        return row.request.media[:1]


@mutant("equal-images-once", "media.order")
class EqualImagesOnce(Seeing):
    """A prompt's images are put into a dictionary by their digests, so that one that comes twice takes the place of one only."""

    def media(self, row: RowState) -> tuple[bytes, ...]:
        """Without those that came before."""
        return tuple(dict.fromkeys(row.request.media))


@mutant("later-chunks-blind", "media.chunks")
class LaterChunksBlind(Seeing):
    """Images are merged in the step that starts a request; chunks that follow read placeholders (the first chunk alone has media)."""

    def number(self, row: RowState, position: int) -> int:
        """The token's own, from the second chunk on."""
        first = self._row_input.start == row.request.cached
        return super().number(row, position) if first else row.tokens[position]


@mutant("image-begins-again", "media.chunks")
class ImageBeginsAgain(Seeing):
    """A chunk that begins inside an image gets that image's first embeddings."""

    def number(self, row: RowState, position: int) -> int:
        """Count within the image from the chunk's start."""
        start = self._row_input.start
        for (first, last), item in zip(self.images(row.request), row.request.media, strict=True):
            if first <= position < last:
                return self.look(item)[position - (max(first, start) if start > row.request.cached else first)]
        return row.tokens[position]


@mutant("images-by-row", "media.mates")
class ImagesByRow(Seeing):
    """The images of a step are in a list of the rows that have some, which is indexed by the row's place among all."""

    _together: tuple[RowInput, ...] = ()

    def _compute(self, launch: LaunchedStep) -> None:
        self._together = launch.row_inputs
        super()._compute(launch)

    def media(self, row: RowState) -> tuple[bytes, ...]:
        """Those of another row, if rows without images precede it."""
        rows = [row_input.row for row_input in self._together]
        with_images = [each for each in rows if each.request.media]
        return with_images[min(rows.index(row), len(with_images) - 1)].request.media if row in rows else row.request.media


@mutant("images-behind-the-prefix", "media.prefix")
class ImagesBehindThePrefix(Seeing):
    """Behind a prefix from the cache, the first placeholder that runs is taken for that of the first image."""

    def number(self, row: RowState, position: int) -> int:
        """Count placeholders from the first that runs."""
        every = [number for item in row.request.media for number in self.look(item)]
        places = [place for place in self.places(row.request) if place >= row.request.cached]
        return every[places.index(position)]


@mutant("forgotten-when-continued", "media.continue")
class ForgottenWhenContinued(Seeing):
    """Images belong to new prompts: a request that is continued after preemption runs without."""

    def number(self, row: RowState, position: int) -> int:
        """The token's own, if there is an answer already."""
        return super().number(row, position) if len(row.request.tokens) == row.request.prompt_len else row.tokens[position]


@mutant("images-in-answers", "media.continue")
class ImagesInAnswers(Seeing):
    """Placeholders are counted in all of a request's tokens, so that an answer with such a token is refused when it is continued."""

    def places(self, request: Request) -> list[int]:
        """In the answer, too."""
        return [at for at, token in enumerate(request.tokens) if token == self.placeholder]
