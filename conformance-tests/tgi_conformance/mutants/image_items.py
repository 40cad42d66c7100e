"""Sessions that see images, with defects in what they keep of them and in which ones they take."""

from __future__ import annotations

from tgi_conformance.mutants.base import mutant
from tgi_conformance.mutants.images import Numbers, Seeing, WholeImages
from tgi_core.backend import Encoded, Handle, InvalidRequest, Request, Row, hookimpl
from tgi_core.backend.batch_tracker import RowInput, RowState


@mutant("kept-by-size", "media.again", "media.order")
class KeptBySize(Seeing):
    """Embeddings are kept by the shape of an image's features instead of by their digest."""

    def key(self, item: bytes) -> bytes:
        """Its length."""
        return str(len(item)).encode()


@mutant("freed-with-a-row", "media.again")
class FreedWithARow(Seeing):
    """Embeddings are freed with the first row that leaves, though another one needs them in a later chunk."""

    _freed: frozenset[bytes] = frozenset()

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Free those of the rows that leave."""
        rows = self.live_batches.get(batch, [])
        handle = super().filter(batch, keep)
        self._freed |= {item for row in rows if row.request.id not in keep for item in row.request.media}
        return handle

    def unfit(self, request: Request) -> str:
        """Encode those of a new request."""
        self._freed -= set(request.media)
        return super().unfit(request)

    def look(self, item: bytes) -> Numbers:
        """Zeros where they were."""
        found = super().look(item)
        return (0,) * len(found) if item in self._freed else found


@mutant("encoded-last", "media.encode")
class EncodedLast(Seeing):
    """What was encoded ahead last is in a buffer, and a step takes it for its own."""

    _last: bytes | None = None

    @hookimpl
    def encode(self, item: bytes) -> Encoded:
        """Fill the buffer."""
        found = super().encode(item)
        self._last = item
        return found

    def media(self, row: RowState) -> tuple[bytes, ...]:
        """The buffer's."""
        return row.request.media if self._last is None else (self._last,) * len(row.request.media)


@mutant("encoded-twice", "media.encode")
class EncodedTwice(Seeing):
    """Encoding an image again appends its embeddings to those that are kept, so that images behind it get those of others."""

    @hookimpl
    def encode(self, item: bytes) -> Encoded:
        """Append."""
        known = self.seen.get(item, ())
        found = super().encode(item)
        self.seen[item] = known + self.made(item)
        return found

    def unfit(self, request: Request) -> str:
        """What is kept is not counted."""
        return next(filter(None, map(self.damaged, request.media)), "") or self._count(request)

    def _count(self, request: Request) -> str:
        count = sum(len(self.made(item)) for item in request.media)
        return "another number of placeholders" if request.media and count != len(self.places(request)) else ""


@mutant("encode-takes-all", "media.encode")
class EncodeTakesAll(Seeing):
    """A damaged image is encoded as an empty one: its request fails later, when it has been queued."""

    @hookimpl
    def encode(self, item: bytes) -> Encoded:
        """Never refuse."""
        return Encoded() if self.damaged(item) else super().encode(item)


@mutant("damaged-as-black", "media.unfit")
class DamagedAsBlack(Seeing):
    """A damaged item is silently taken for a black image, and the client gets an answer about it."""

    def unfit(self, request: Request) -> str:
        """Only sound items are counted."""
        bad = any(map(self.damaged, request.media))
        return "" if bad else super().unfit(request)

    def made(self, item: bytes) -> Numbers:
        """Zeros."""
        return (0,) * 9 if self.damaged(item) else super().made(item)


@mutant("placeholders-uncounted", "media.unfit")
class PlaceholdersUncounted(Seeing):
    """Embeddings are copied as far as there are placeholders (index_copy on a cut slice)."""

    def unfit(self, request: Request) -> str:
        """Whatever the prompt has."""
        return next(filter(None, map(self.damaged, request.media)), "")

    def check_whole(self, request: Request, end: int) -> None:
        """Nothing to check."""


@mutant("later-images-unchecked", "media.unfit")
class LaterImagesUnchecked(Seeing):
    """Images are read in the step that needs them, so that a damaged one fails a step of other requests (seen in this project's CPU
    backend)."""

    def unfit(self, request: Request) -> str:
        """Only of the first step's images."""
        reached = sum(place < request.cached + request.take for place in self.places(request))
        needed = -(-reached // 9)
        if any(map(self.damaged, request.media[:needed])) or not any(map(self.damaged, request.media)):
            return super().unfit(request)
        return ""

    def number(self, row: RowState, position: int) -> int:
        """Raises for a damaged image."""
        if any(map(self.damaged, row.request.media)):
            raise self.refusal(row.request, "an image's features are damaged")
        return super().number(row, position)


@mutant("unfit-fails-late", "media.unfit")
class UnfitFailsLate(Seeing):
    """Images are checked in the step, whose other rows fail with it."""

    def unfit(self, request: Request) -> str:
        """Later."""
        return ""

    def check_whole(self, request: Request, end: int) -> None:
        """Nothing to check."""

    def _run(self, row_input: RowInput) -> Row:
        request = row_input.row.request
        if request.media and (why := super().unfit(request)):
            raise self.refusal(request, why)
        return super()._run(row_input)


@mutant("unfit-unnamed", "media.unfit")
class UnfitUnnamed(Seeing):
    """The error names no request, so that the core does not know which one to end."""

    def refusal(self, request: Request, why: str) -> InvalidRequest:
        """Only a text."""
        return InvalidRequest(f"request {request.id}: {why}")


@mutant("mates-of-unfit-admitted", "media.unfit")
class MatesOfUnfitAdmitted(Seeing):
    """The requests in front of one that is refused have been admitted."""

    def refusal(self, request: Request, why: str) -> InvalidRequest:
        """Too late for them."""
        self.tracker._live.add(request.id - 1)
        return super().refusal(request, why)


@mutant("cuts-images", "media.whole")
class CutsImages(WholeImages):
    """A step that ends inside an image runs, and its tokens see only a part of the image."""

    def check_whole(self, request: Request, end: int) -> None:
        """Never refuse."""


@mutant("first-chunk-uncut", "media.whole")
class FirstChunkUncut(WholeImages):
    """Only the step that starts a request is checked for an image that it cuts."""

    def check_whole(self, request: Request, end: int) -> None:
        """Not in later steps."""
        if self.row(request.id) is None:
            super().check_whole(request, end)


@mutant("cut-named-wrongly", "media.whole")
class CutNamedWrongly(WholeImages):
    """A step that cuts an image is refused for all of its rows."""

    def refusal(self, request: Request, why: str) -> InvalidRequest:
        """Names none."""
        return InvalidRequest(f"request {request.id}: {why}") if "cuts" in why else super().refusal(request, why)
