"""Sessions whose prompts run whole: what their tokens see."""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import Capabilities, Row, hookimpl
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.backend.reference import mix


class Whole(Sound):
    """The states of a prompt's positions are those of the toy model if they see all of the prompt and nothing else."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Prompts run whole."""
        return replace(super().capabilities(), whole_prompts=True)

    def _run(self, row_input: RowInput) -> Row:
        end, prompt = row_input.start + row_input.take - len(row_input.drafts), row_input.row.request.prompt_len
        self._sees_each_other = self._first(row_input, end)
        seen = min(self._sees_each_other, end)
        self._amiss = 0 if row_input.start >= self._sees_each_other or seen == prompt else mix(seen)
        return super()._run(row_input)

    def _first(self, row_input: RowInput, end: int) -> int:
        """How many of a row's first tokens see each other in a step that ends before `end`."""
        return row_input.row.request.prompt_len

    def _write(self, row: RowState, position: int) -> int:
        state = super()._write(row, position)
        if position < self._sees_each_other and self._amiss:
            self._slots[self._slot(row.tables[0], position)] = state = mix(state ^ self._amiss)
        return state


@mutant("whole-prompts")
class WholePrompts(Whole):
    """A model whose prompts see all of themselves, so that one that is cut gets other states."""


@mutant("whole-first-step", "continue.whole-prompts", "continue.greedy")
class WholeFirstStep(Whole):
    """Whatever runs in a row's first step is taken for its prompt: an answer that is continued sees its own future (an attention mask made
    from the lengths of a step's rows)."""

    def _first(self, row_input: RowInput, end: int) -> int:
        return end if row_input.start == row_input.row.request.cached else row_input.row.request.prompt_len


@mutant("whole-every-chunk", "continue.whole-prompts")
class WholeEveryChunk(Whole):
    """Tokens that run in one step see each other if there are several of them (the kernel for prompts masks nothing)."""

    def _first(self, row_input: RowInput, end: int) -> int:
        return end if row_input.take > 1 and not row_input.drafts else row_input.row.request.prompt_len
