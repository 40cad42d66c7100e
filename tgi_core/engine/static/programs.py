"""The programs of a session: one compiled function for every shape in its buckets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tgi_core.backend import CompileFailed
from tgi_core.engine.compiling.base import Compiled, ProgramCompiler
from tgi_core.engine.device_queue import StepSampler
from tgi_core.engine.static.buckets import HeadShape, Shape
from tgi_core.engine.static.program_inputs import fill_padding, input_layout
from tgi_core.engine.static.regions import Forward, body_of


class Programs:
    """All programs of one session over one cache, and the newest token of every row slot, the last of which is for waste."""

    def __init__(
        self, forward: Forward, compiler: ProgramCompiler, sampler: StepSampler, row_slots: int, device: torch.device
    ) -> None:
        self.compiler = compiler
        self._forward, self._sampler, self._waste = forward, sampler, row_slots - 1
        self._newest = torch.zeros(row_slots, dtype=torch.int64, device=device)
        self._compiled: dict[Shape | HeadShape, Compiled] = {}

    def run(self, shape: Shape | HeadShape, *inputs: Tensor) -> Any:
        """Enqueue a program. Raises CompileFailed for a shape that was not warmed.

        A `Shape` takes its words, writes keys and values to the cache, and returns hidden states [outputs, hidden]. A `HeadShape` takes
        those and its words, and returns the argmax int32 [kept], −1 where logits are not finite, its logprob float32 [kept], and the
        logits [kept, vocabulary].
        """
        found = self._compiled.get(shape)
        if found is None:
            raise CompileFailed(f"no program of shape {shape} was warmed up")
        return found(self._forward, self._newest, *inputs)

    @torch.no_grad()
    def warm(self, shape: Shape | HeadShape) -> None:
        """Compile a program, and run it over padding."""
        layout = input_layout(shape)
        words = torch.zeros(layout.count, dtype=torch.int32)
        fill_padding(shape, self._waste, layout.host(words))
        inputs = [words.to(self._newest.device)]
        if isinstance(shape, HeadShape):
            hidden = torch.zeros(shape.tokens, self._forward.decoder.table.hidden, dtype=self._forward.decoder.final_norm.dtype)
            inputs.insert(0, hidden.to(self._newest.device))
        self._compiled[shape] = self._program(shape)
        self.run(shape, *inputs)

    def _program(self, shape: Shape | HeadShape) -> Compiled:
        def compiled(run: Compiled, part: str = "") -> Compiled:
            return self.compiler.compile(run, f"{shape}: {part}" if part else str(shape))

        if isinstance(shape, HeadShape):
            return compiled(_head(shape, self._sampler))
        if self.compiler.by_layer:
            return body_of(shape, compiled)
        return compiled(body_of(shape, lambda part, name: part))

    def release(self) -> None:
        """Free them all."""
        self._compiled.clear()
        self.compiler.release()


def _head(shape: HeadShape, sampler: StepSampler) -> Compiled:
    layout = input_layout(shape)

    def head(forward: Forward, newest: Tensor, hidden: Tensor, words: Tensor) -> tuple[Tensor, ...]:
        inputs = layout.device(words)
        logits = forward.logits(hidden.index_select(0, inputs["kept"]))
        tokens, logprobs = sampler.choose(logits, None, inputs["kept"])
        newest.index_copy_(0, inputs["sampled"], tokens.clamp_min(0))
        return tokens.int(), logprobs.float(), logits

    return head
