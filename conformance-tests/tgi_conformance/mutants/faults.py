"""Steps that fail, and sessions that end."""

from __future__ import annotations

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import BackendBug, BackendError, Closed, Grant, Handle, InvalidRequest, Request, Rows, Step, hookimpl


@mutant("late-error-swallowed", "faults.rows")
class LateErrorSwallowed(Sound):
    """An error in a step is logged, and the answer has no rows."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Return no rows, as if nothing had run."""
        try:
            return super().rows(step)
        except InvalidRequest:
            raise
        except BackendError:
            return Rows(step.id, ())


@mutant("late-error-revives", "faults.rows", "faults.derived")
class LateErrorRevives(Sound):
    """The batch of a failed step lives on with holes in its cache (TGI's Neuron backend keeps its slots after a failing decode)."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Restore the batches after a failure."""
        kept, origins = dict(self.live_batches), dict(self.tracker._origins)
        try:
            return super().rows(step)
        except BackendError:
            self.live_batches.update(kept)
            self.tracker._origins.update(origins)
            raise


@mutant("late-error-kills-all", "faults.others")
class LateErrorKillsAll(Sound):
    """A failed step ends every batch."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Drop everything after a failure."""
        try:
            return super().rows(step)
        except InvalidRequest:
            raise
        except BackendError:
            self.tracker.clear(None)
            raise


@mutant("late-error-keeps-places", "faults.place")
class LateErrorKeepsPlaces(Sound):
    """The rows of a failed step are dropped, but their places stay taken."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Keep counting the rows."""
        before = set(self.tracker._live)
        try:
            return super().rows(step)
        except InvalidRequest:
            raise
        except BackendError:
            self.tracker._live.update(-id for id in before)
            raise


@mutant("late-error-untyped", "faults.rows")
class LateErrorUntyped(Sound):
    """Every error in a step has the same type."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Raise BackendBug for everything."""
        try:
            return super().rows(step)
        except InvalidRequest:
            raise
        except BackendError as error:
            raise BackendBug(str(error)) from error


@mutant("derived-lives", "faults.derived")
class DerivedLives(Sound):
    """Only the failed step's own handle dies: batches launched from it in the meantime live on."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Put the other batches back."""
        kept = {handle: rows for handle, rows in self.live_batches.items() if handle != step.handle}
        origins = dict(self.tracker._origins)
        try:
            return super().rows(step)
        except BackendError:
            self.live_batches.update(kept)
            self.tracker._origins.update({handle: origins[handle] for handle in kept})
            raise


@mutant("continued-under-fault", "faults.continue")
class ContinuedUnderFault(Sound):
    """After a failure, the next new requests get the states of the dead rows."""

    _scarred = False

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Note a failure."""
        try:
            return super().rows(step)
        except InvalidRequest:
            raise
        except BackendError:
            self._scarred = True
            raise

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Drop the last token of a prompt."""
        step = super().prefill(batch, cached, grants)
        for request in batch if self._scarred else ():
            row = self.row(request.id)
            if row is not None:
                row.tokens[-1] = 0
        return step


@mutant("loss-is-final", "faults.lost", "faults.reopen")
class LossIsFinal(Sound):
    """Closing fails after a loss, or the second time."""

    @hookimpl
    def close(self) -> Closed:
        """Refuse a second close."""
        if self._tracker is None:
            raise InvalidRequest("the session is closed already")
        return super().close()

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Keep the device closed after a failure."""
        try:
            return super().rows(step)
        except BackendError as error:
            raise BackendBug("the device is lost for good") from error


@mutant("runs-after-close", "faults.after-close")
class RunsAfterClose(Sound):
    """Close frees memory that the next verb uses (a use after free on a device, an IndexError here)."""

    @hookimpl
    def close(self) -> Closed:
        """Keep the session's records."""
        kept = self._tracker
        closed = super().close()
        self._tracker = kept
        return closed


@mutant("late-error-spares-who-left", "faults.filtered")
class LateErrorSparesWhoLeft(Sound):
    """Only batches that still hold a row of the failed step end: a row taken out of it lives on, without the step's result."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Decide by the rows of the step instead of by what was derived from its batch."""
        ran = {row_input.row.request.id for launch in self._launched if launch.step == step for row_input in launch.row_inputs}
        masked = {id for id in ran if (row := self.row(id)) is not None and row.request.masked}
        kept = {handle: rows for handle, rows in self.live_batches.items() if masked.isdisjoint(row.request.id for row in rows)}
        origins = {handle: self.tracker._origins[handle] for handle in kept}
        try:
            return super().rows(step)
        except BackendError:
            self.live_batches.update(kept)
            self.tracker._origins.update(origins)
            self.tracker._live.update(row.request.id for rows in kept.values() for row in rows)
            raise


@mutant("given-up-steps-block", "order.given-up")
class GivenUpStepsBlock(Sound):
    """A queue from which the first step must be read, even if it never will be (the suite's own kit, with two steps in flight)."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Read the first step or none."""
        if self._launched and self._launched[0].step.id < step.id and step.id not in self._done:
            raise InvalidRequest(f"step {step.id} is not the next one")
        return super().rows(step)
