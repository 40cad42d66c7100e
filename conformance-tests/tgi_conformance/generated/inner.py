"""The reference backend's model with hooks for mistakes that no wrapper can make: in slots, states, logits and choices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tgi_conformance.generated.moment import Moment
from tgi_conformance.mutants.base import Sound
from tgi_core.backend.batch_tracker import LaunchedStep, RowInput, RowState

if TYPE_CHECKING:
    from tgi_conformance.generated.witness import Witness


class Model(Sound):
    """A toy model that knows the moment its witness noted for each row it runs."""

    choices: ClassVar[tuple[Any, ...]] = (None,)
    """A mutant of this kind draws one of these."""

    witness: Witness
    choice: Any = None
    launch: LaunchedStep | None = None
    """The step being computed."""

    @property
    def row_inputs(self) -> tuple[RowInput, ...]:
        """All rows of the step being computed, in order."""
        return self.launch.row_inputs if self.launch else ()

    def moment(self, row: RowState) -> Moment | None:
        """Return what is known of a row in this step."""
        return self.witness.moments.get(self.launch.step.id, {}).get(row.request.id) if self.launch else None

    def fires(self, row: RowState, position: int | None = None) -> bool:
        """Return whether to be wrong for a row, at a position."""
        return self.witness.trigger.fires(self.moment(row), position)

    def neighbour(self, row: RowState) -> RowState:
        """Return the next row of the step; the last row's neighbour is the first."""
        rows = [row_input.row for row_input in self.row_inputs]
        return rows[(rows.index(row) + 1) % len(rows)] if row in rows else row

    def at_place(self, row: RowState) -> int:
        """Return the row's place in this step."""
        return next((place for place, row_input in enumerate(self.row_inputs) if row_input.row is row), 0)

    def _compute(self, launch: LaunchedStep) -> None:
        self.launch = launch
        super()._compute(launch)

    def logits_state(self, row_input: RowInput, state: int) -> int:
        """Return the state from which a row's logits are made."""
        return state

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        return super()._sample(row_input, self.logits_state(row_input, state))
