"""The reference backend's model with hooks for mistakes that no wrapper can make: in slots, states, logits and choices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tgi_conformance.generated.moment import Moment
from tgi_conformance.mutants.base import Sound
from tgi_core.backend.ledger import Launch, LiveRow, Work

if TYPE_CHECKING:
    from tgi_conformance.generated.witness import Witness


class Model(Sound):
    """A toy model that knows the moment its witness noted for each row it runs."""

    choices: ClassVar[tuple[Any, ...]] = (None,)
    """A mutant of this kind draws one of these."""

    witness: Witness
    choice: Any = None
    launch: Launch | None = None
    """The step being computed."""

    @property
    def works(self) -> tuple[Work, ...]:
        """All rows of the step being computed, in order."""
        return self.launch.work if self.launch else ()

    def moment(self, row: LiveRow) -> Moment | None:
        """Return what is known of a row in this step."""
        return self.witness.moments.get(self.launch.step.id, {}).get(row.request.id) if self.launch else None

    def fires(self, row: LiveRow, position: int | None = None) -> bool:
        """Return whether to be wrong for a row, at a position."""
        return self.witness.trigger.fires(self.moment(row), position)

    def neighbour(self, row: LiveRow) -> LiveRow:
        """Return the next row of the step; the last row's neighbour is the first."""
        rows = [work.row for work in self.works]
        return rows[(rows.index(row) + 1) % len(rows)] if row in rows else row

    def at_place(self, row: LiveRow) -> int:
        """Return the row's place in this step."""
        return next((place for place, work in enumerate(self.works) if work.row is row), 0)

    def _compute(self, launch: Launch) -> None:
        self.launch = launch
        super()._compute(launch)

    def logits_state(self, work: Work, state: int) -> int:
        """Return the state from which a row's logits are made."""
        return state

    def _sample(self, work: Work, state: int) -> dict[str, Any]:
        return super()._sample(work, self.logits_state(work, state))
