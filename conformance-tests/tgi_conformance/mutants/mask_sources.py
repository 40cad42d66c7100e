"""How masks are fetched: for which rows, when, by which thread, with which new tokens, and how their bits are read."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from tgi_conformance.masks import SLOW_S
from tgi_conformance.mutants.base import Sound, mutant
from tgi_conformance.mutants.masks import Between, Source
from tgi_core.backend import BackendError, Cleared, Handle, MaskRow, hookimpl
from tgi_core.backend.batch_tracker import LaunchedStep
from tgi_core.backend.masking import mask_row


class _ByAge(Source):
    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.made: dict[int, int] = {}
        self.kept: dict[int, bytes] = {}

    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """Return what the first row of the same age got."""
        (row,) = rows
        age = self.made[row.request_id] = self.made.get(row.request_id, 0) + len(row.tokens)
        found = super().fill(rows)
        return self.kept.setdefault(age, found) if any(found) else found


@mutant("mask-by-age", "masks.own")
class MaskByAge(Between):
    """Masks are cached by how many tokens a row has made, as if all requests had the same grammar."""

    source = _ByAge


class _Hasty(Source):
    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.worker = ThreadPoolExecutor(1)

    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """Return the mask if it comes in time, else one that allows everything."""
        coming = self.worker.submit(super().fill, rows)
        try:
            return coming.result(0.7 * SLOW_S)
        except TimeoutError:
            return b"\xff" * len(coming.result())


@mutant("mask-not-waited-for", "masks.slow")
class MaskNotWaitedFor(Between):
    """Masks are filled during the forward pass; rows whose mask is late run without one."""

    source = _Hasty


class _Ready(Source):
    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.ready: dict[int, Future[bytes]] = {}

    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """Return what the pool has filled."""
        return self.ready.pop(rows[0].request_id).result()


@mutant("masks-by-two-threads", "masks.one-thread")
class MasksByTwoThreads(Between):
    """A pool of threads fills the masks of a step (xgrammar's batch filling, over a source that is not thread-safe)."""

    source = _Ready

    def _compute(self, launch: LaunchedStep) -> None:
        source = self._masks
        if isinstance(source, _Ready):
            rows = [
                mask_row(row_input.row) for row_input in launch.row_inputs if row_input.yields and row_input.row.request.masked
            ]
            with ThreadPoolExecutor(2) as pool:
                for row in rows:
                    source.ready[row.request_id] = pool.submit(source.real.fill, (row,))
        super()._compute(launch)


class _Behind(Source):
    late = False
    """Whether a launched step has not been computed yet."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.owed: dict[int, tuple[int, ...]] = {}

    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """Report tokens one behind if a step is unread."""
        (row,) = rows
        news = (*self.owed.pop(row.request_id, ()), *row.tokens)
        if self.late:
            self.owed[row.request_id] = news[-1:]
            news = news[:-1]
        return super().fill((replace(row, tokens=news),))


@mutant("told-when-read", "masks.told-ahead")
class ToldWhenRead(Between):
    """The tokens of several masked rows are reported from what was read last: one behind if a step runs ahead."""

    source = _Behind

    def _compute(self, launch: LaunchedStep) -> None:
        if isinstance(self._masks, _Behind):
            masked = sum(row_input.row.request.masked for row_input in launch.row_inputs)
            self._masks.late = bool(self._launched) and masked > 1
        super()._compute(launch)


class _Seats(Source):
    moved = False

    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """Report a wrong token for a row that has moved up."""
        (row,) = rows
        if self.moved and row.tokens:
            row = replace(row, tokens=((row.tokens[0] + 1) % 24,))
        return super().fill((row,))


@mutant("told-by-slot", "masks.told-ahead")
class ToldBySeat(Between):
    """The newest tokens are stored by place on the device; after rows have left, and with a step ahead, each is reported for the row that
    is now in that place."""

    source = _Seats

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Rows move up."""
        self._left = len(keep) < len(self.live_batches.get(batch, ()))
        return super().filter(batch, keep)

    def _compute(self, launch: LaunchedStep) -> None:
        if isinstance(self._masks, _Seats):
            self._masks.moved = bool(self._launched) and getattr(self, "_left", False)
        super()._compute(launch)


class _Worker(Source):
    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """Fill in a new thread each time."""
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(super().fill, rows).result()


@mutant("masks-from-a-worker")
class MasksFromAWorker(Between):
    """A separate thread fills the masks, and the session waits for it."""

    source = _Worker


class _Batched(Source):
    """Requests the masks of a step together, then splits and reads them in some way."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.cut: dict[int, bytes] = {}

    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """Return the row's part; at the positions of its drafts, a mask requested separately."""
        found = self.cut.pop(rows[0].request_id, None)
        return self.read(self.real.fill(rows)) if found is None else found

    def ask(self, rows: tuple[MaskRow, ...], vocab_size: int) -> None:
        """Request the masks of a step."""
        bits = self.real.fill(rows)
        stride, width = self.stride(vocab_size), len(bits) // len(rows)
        for place, row in enumerate(rows):
            mine = self.read(bits[place * stride : place * stride + width])
            self.cut[row.request_id] = mine.ljust(width, b"\0")

    def stride(self, vocab_size: int) -> int:
        """Bytes from one row's mask to the next."""
        return 4 * -(-vocab_size // 32)

    def read(self, bits: bytes) -> bytes:
        """Return one row's bits, as specified."""
        return bits


@mutant("masks-of-a-step")
class MasksOfAStep(Between):
    """The masks of a step are requested in one call."""

    source: type[Source] = _Batched

    def _compute(self, launch: LaunchedStep) -> None:
        live = [row_input for row_input in launch.row_inputs if row_input.row.request.id not in self._failed]
        rows = tuple(mask_row(row_input.row) for row_input in live if row_input.yields and row_input.row.request.masked)
        if rows and isinstance(self._masks, _Batched):
            try:
                self._masks.ask(rows, self._vocab_size)
            except BackendError as error:
                self._faults[launch.step.id] = error
                launch = replace(launch, row_inputs=())
        super()._compute(launch)


class _ByBytes(_Batched):
    def stride(self, vocab_size: int) -> int:
        """Whole bytes, not whole words."""
        return -(-vocab_size // 8)


@mutant("mask-rows-by-bytes", "masks.layout")
class MaskRowsByBytes(MasksOfAStep):
    """A row's mask is assumed to end with the byte of the last token, which is only right if that byte ends the last word."""

    source = _ByBytes


class _Mirrored(_Batched):
    def read(self, bits: bytes) -> bytes:
        """The first token in the highest bit."""
        return bytes(int(f"{byte:08b}"[::-1], 2) for byte in bits)


@mutant("mask-bits-mirrored", "masks.layout", "masks.told")
class MaskBitsMirrored(MasksOfAStep):
    """Masks are unpacked from the highest bit on (numpy.unpackbits without bitorder)."""

    source = _Mirrored


class _BigEndian(_Batched):
    def read(self, bits: bytes) -> bytes:
        """Reverse the bytes of each word."""
        return b"".join(bits[place : place + 4][::-1] for place in range(0, len(bits), 4))


@mutant("mask-words-big-endian", "masks.layout")
class MaskWordsBigEndian(MasksOfAStep):
    """Words of masks are read in the wrong byte order."""

    source = _BigEndian


@mutant("mask-before-prompt-ends", "masks.complete-prompts")
class MaskBeforePromptEnds(Between):
    """Masks are requested for every masked row of a step, even if its prompt continues in the next one."""

    def _compute(self, launch: LaunchedStep) -> None:
        early = tuple(
            mask_row(row_input.row) for row_input in launch.row_inputs if row_input.row.request.masked and not row_input.yields
        )
        if early and self._masks is not None:
            self._masks.fill(early)
        super()._compute(launch)


@mutant("filter-waits", "order.never-waits")
class FilterWaits(Sound):
    """Rows leave only once the device is idle, so that nothing is in their blocks any more."""

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """After all that was launched."""
        while self._launched:
            self._compute(self._launched.popleft())
        return super().filter(batch, keep)


@mutant("clear-waits", "order.never-waits")
class ClearWaits(Sound):
    """The same for a batch that is dropped."""

    @hookimpl
    def clear(self, batch: Handle | None) -> Cleared:
        """After all that was launched."""
        while self._launched:
            self._compute(self._launched.popleft())
        return super().clear(batch)
