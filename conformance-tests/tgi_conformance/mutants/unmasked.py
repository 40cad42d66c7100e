"""Late failures of sessions without masks, caused by the session's own `conformance_fail`."""

from __future__ import annotations

from tgi_conformance.mutants.base import mutant
from tgi_conformance.mutants.faults import LateErrorKeepsPlaces, LateErrorKillsAll, LateErrorRevives
from tgi_conformance.mutants.twins import Modest
from tgi_core.backend import BackendError, Step
from tgi_core.backend.batch_tracker import LaunchedStep


@mutant("modest-and-breakable")
class Breakable(Modest):
    """Declares nothing beyond text-core, but lets the suite make its steps fail."""

    _next: BackendError | None = None

    def conformance_fail(self, error: BackendError) -> None:
        """Make the step launched next fail."""
        self._next = error

    def _start(self, launch: LaunchedStep) -> Step:
        if self._next is not None:
            self._faults[launch.step.id], self._next = self._next, None
        return super()._start(launch)


@mutant("unmasked-error-revives", "faults.rows", "faults.derived")
class UnmaskedErrorRevives(LateErrorRevives, Breakable):
    """The batch of a failed step lives on, where no mask source could reveal it."""


@mutant("unmasked-error-kills-all", "faults.others")
class UnmaskedErrorKillsAll(LateErrorKillsAll, Breakable):
    """A failed step ends every batch, where no mask source could reveal it."""


@mutant("unmasked-error-keeps-places", "faults.place")
class UnmaskedErrorKeepsPlaces(LateErrorKeepsPlaces, Breakable):
    """The rows of a failed step keep their places, where no mask source could reveal it."""
