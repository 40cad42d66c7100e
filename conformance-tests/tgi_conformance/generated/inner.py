"""The reference backend's model with places to be wrong at, for what no wrapper can reach: slots, states, logits, choices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tgi_conformance.generated.moment import Moment
from tgi_conformance.mutants.base import Sound
from tgi_core.backend.ledger import Launch, LiveRow, Work

if TYPE_CHECKING:
    from tgi_conformance.generated.witness import Witness


class Model(Sound):
    """A toy model that knows, of each row that it runs, the moment that its witness noted."""

    choices: ClassVar[tuple[Any, ...]] = (None,)
    """What a mutant of this kind draws one of."""

    witness: Witness
    choice: Any = None
    launch: Launch | None = None
    """The step that is being computed."""

    @property
    def works(self) -> tuple[Work, ...]:
        """All rows of the step that is being computed, in order."""
        return self.launch.work if self.launch else ()

    def moment(self, row: LiveRow) -> Moment | None:
        """What is known of a row in this step."""
        return self.witness.moments.get(self.launch.step.id, {}).get(row.request.id) if self.launch else None

    def fires(self, row: LiveRow, position: int | None = None) -> bool:
        """Whether to be wrong for a row, at a position."""
        return self.witness.trigger.fires(self.moment(row), position)

    def neighbour(self, row: LiveRow) -> LiveRow:
        """The row behind in this step, the first for the last."""
        rows = [work.row for work in self.works]
        return rows[(rows.index(row) + 1) % len(rows)] if row in rows else row

    def at_place(self, row: LiveRow) -> int:
        """Its place in this step."""
        return next((place for place, work in enumerate(self.works) if work.row is row), 0)

    def _compute(self, launch: Launch) -> None:
        self.launch = launch
        super()._compute(launch)

    def logits_state(self, work: Work, state: int) -> int:
        """The state that a row's logits are made from."""
        return state

    def _sample(self, work: Work, state: int) -> dict[str, Any]:
        return super()._sample(work, self.logits_state(work, state))
