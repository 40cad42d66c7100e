"""The states of all rows, and how a layer of transformers reads and writes those of a part of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.backend.batch_tracker import RowInput

StateKey = tuple[str, int]
"""A layer's state: "conv" or "recurrent", and its number among those of its kind."""
StateShapes = Mapping[StateKey, tuple[tuple[int, ...], torch.dtype]]
"""Shape of one row, and dtype, of each state of a layer."""
SlotStates = Mapping[StateKey, Tensor]
"""One layer's states [slots + 1, ...] by key. A slot is the block of a row in its STATE group; slot 0 is unused, as the null block."""


def new_states(shapes: StateShapes, slots: int, device: torch.device) -> SlotStates:
    """Memory for the states of slots 1…slots."""
    return {key: torch.zeros(slots + 1, *shape, dtype=dtype, device=device) for key, (shape, dtype) in shapes.items()}


def state_bytes(shapes: StateShapes) -> int:
    """Bytes of one row's states in a layer."""
    return sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in shapes.values())


@dataclass(frozen=True, slots=True)
class StepPart:
    """Flat tokens start…end-1 that run through a state layer together: rows that run one token each, or one row's next tokens. `slots`
    are the rows' slots: a slice if they are adjacent, so that their states need no copies, else int64 on the device. `fresh` says that
    the row has no state yet.
    """

    start: int
    end: int
    slots: slice | Tensor
    fresh: bool
    one_each: bool


def step_parts(order: Sequence[RowInput], device: torch.device) -> list[StepPart]:
    """The parts of a step whose flat tokens are those of `order`, one row after the other."""
    parts: list[StepPart] = []
    together: list[int] = []
    at = 0
    for row_input in order:
        slot, start = row_input.row.tables[-1][0], at
        at += row_input.take
        if row_input.take == 1 and row_input.start:
            together.append(slot)
            continue
        if together:
            parts.append(_together(together, start, device))
            together = []
        parts.append(StepPart(start, at, slice(slot, slot + 1), row_input.start == 0, one_each=False))
    return [*parts, _together(together, at, device)] if together else parts


def _together(slots: list[int], end: int, device: torch.device) -> StepPart:
    neighbours = slots == list(range(slots[0], slots[0] + len(slots)))
    which = slice(slots[0], slots[-1] + 1) if neighbours else torch.tensor(slots, dtype=torch.int64).to(device)
    return StepPart(end - len(slots), end, which, fresh=False, one_each=True)


class PartStates:
    """A layer's `Cache` while a part of a step runs: it has the methods of transformers' `Cache` for layers with states."""

    __slots__ = ("_all", "_part", "_states")

    def __init__(self, states: SlotStates, part: StepPart) -> None:
        self._all, self._part = states, part
        self._states: dict[StateKey, Tensor] = {} if part.fresh else {key: each[part.slots] for key, each in states.items()}

    def commit(self) -> None:
        """Write back the states of rows that are not adjacent; call it once the layer has run."""
        if isinstance(self._part.slots, Tensor):
            for key, states in self._states.items():
                self._all[key].index_copy_(0, self._part.slots, states)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The last inputs of a convolution [rows, channels, width]; None at the start of a row."""
        return self._states.get(("conv", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The state of a recurrence [rows, ...]; None at the start of a row."""
        return self._states.get(("recurrent", state_idx))

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Whether the rows have run before."""
        return bool(self._states)

    def is_recording_past(self, layer_idx: int) -> bool:
        """Whether states can be rolled back: they cannot."""
        return False

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **_: object) -> Tensor:
        """Add inputs [rows, channels, tokens]. Returns them after those that the convolution still sees."""
        key = ("conv", state_idx)
        width = self._all[key].shape[-1]
        known = self._states.get(key)
        if known is not None:
            conv_states = torch.cat((known, conv_states), dim=-1)
        elif conv_states.shape[-1] < width:
            conv_states = F.pad(conv_states, (width - conv_states.shape[-1], 0))
        self._write(key, conv_states[..., -width:])
        return conv_states

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: object) -> Tensor:
        """Replace the state of a recurrence."""
        return self._write(("recurrent", state_idx), recurrent_states)

    def _write(self, key: StateKey, values: Tensor) -> Tensor:
        if key not in self._states:
            self._states[key] = self._all[key][self._part.slots]
        self._states[key].copy_(values)
        return self._states[key]
