"""The programs of a session: one compiled function, with a code object of its own, for every shape of its grid."""

from __future__ import annotations

import types
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.backend import CompileFailed
from tgi_core.engine.device_queue import StepSampler
from tgi_core.engine.static.attention import BlockStep
from tgi_core.engine.static.grid import Grid, HeadShape, Shape
from tgi_core.engine.static.laying import body_words, head_words, ids_of, lay_nothing
from tgi_core.engine.static.regions import Compiled, Forward, by_layer


class Maker(Protocol):
    """A device's compiler."""

    by_layer: bool
    """Whether it compiles single layers, not whole steps."""

    def compile(self, run: Compiled, name: str) -> Compiled:
        """A function of tensors, compiled at its first call, for the shapes of that call only.

        It reads no value on the host and mutates no argument but the caches and the newest tokens. `name` is unique in a session.
        """

    def seal(self) -> None:
        """Warm-up is done: from now on a call that would compile raises."""

    def compiles(self) -> int:
        """Programs compiled since this maker was made, by the compiler's own counter."""

    def release(self) -> None:
        """Free the programs. Idempotent."""


class Programs:
    """All programs of one session over one cache; their methods only enqueue."""

    def __init__(
        self, forward: Forward, grid: Grid, maker: Maker, sampler: StepSampler, row_slots: int, device: torch.device
    ) -> None:
        self.grid = grid
        self._forward, self._maker, self._sampler = forward, maker, sampler
        self._newest = torch.zeros(row_slots, dtype=torch.int64, device=device)
        self._bodies: dict[Shape, Compiled] = {}
        self._heads: dict[HeadShape, Compiled] = {}

    @property
    def compiles(self) -> int:
        """Compiled programs, by the compiler's own counter."""
        return self._maker.compiles()

    def body(self, shape: Shape, words: Tensor) -> Tensor:
        """Hidden states [outputs, hidden] of a step of this shape, padded behind; its keys and values go to the cache."""
        hidden: Tensor = _of(self._bodies, shape)(self._forward, self._newest, words)
        return hidden

    def head(self, shape: HeadShape, hidden: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [kept, vocabulary] of hidden states [tokens, hidden]; int32 [kept, 2] argmax tokens, −1 if not finite, and the
        bits of their logprobs."""
        logits, made = _of(self._heads, shape)(self._forward, self._newest, hidden, words)
        return logits, made

    @torch.no_grad()
    def warm(self, shape: Shape | HeadShape) -> None:
        """Compile a program, and run it over padding."""
        if isinstance(shape, Shape):
            name = f"{shape}, {self.grid.outputs(shape)} hidden states"
            self._bodies[shape] = self._compiled(shape, name)
            self.body(shape, self._padding(shape))
        else:
            self._heads[shape] = self._maker.compile(_named(_head(shape, self._sampler), shape), str(shape))
            table = self._forward.decoder.table
            hidden = torch.zeros(shape.tokens, table.hidden, dtype=self._forward.decoder.final_norm.dtype)
            self.head(shape, hidden.to(self._newest.device), self._padding(shape))

    def _compiled(self, shape: Shape, name: str) -> Compiled:
        words_of = body_words(shape, self.grid.flat)

        def prepare(newest: Tensor, words: Tensor) -> dict[str, Tensor]:
            inputs = words_of.device(words)
            return {"input_ids": ids_of(inputs.pop("ids"), newest), **inputs}

        def compile(run: Compiled, part: str) -> Compiled:
            return self._maker.compile(_named(run, shape), f"{name}: {part}")

        outputs = self.grid.outputs(shape)
        if self._maker.by_layer:
            return by_layer(shape.rows, shape.take, outputs, prepare, compile)

        def body(forward: Forward, newest: Tensor, words: Tensor) -> Tensor:
            hidden = forward.hidden(BlockStep(shape.rows, shape.take, **prepare(newest, words)), None)
            return F.pad(hidden, (0, 0, 0, outputs - shape.tokens))

        return self._maker.compile(_named(body, shape), name)

    def _padding(self, shape: Shape | HeadShape) -> Tensor:
        layout = body_words(shape, self.grid.flat) if isinstance(shape, Shape) else head_words(shape)
        words = torch.zeros(layout.count, dtype=torch.int32)
        if isinstance(shape, Shape):
            lay_nothing(shape, layout.host(words.numpy()))
        return words.to(self._newest.device)

    def seal(self) -> None:
        """Refuse to compile from now on."""
        self._maker.seal()

    def release(self) -> None:
        """Free them all."""
        self._bodies.clear()
        self._heads.clear()
        self._maker.release()


def _of(programs: dict, shape: Shape | HeadShape) -> Compiled:
    found = programs.get(shape)
    if found is None:
        raise CompileFailed(f"no program of shape {shape} was warmed up")
    return found


def _named(run: Compiled, shape: Shape | HeadShape) -> Compiled:
    """The same function with a code object of its own: torch's compiler tries all programs of a code object at each call."""
    word = "body" if isinstance(shape, Shape) else "head"
    name = "_".join((word, *(str(size) for size in _sizes(shape))))
    code = run.__code__.replace(co_name=name, co_qualname=name)
    return types.FunctionType(code, run.__globals__, name, run.__defaults__, run.__closure__)


def _sizes(shape: Shape | HeadShape) -> tuple[int, ...]:
    return (shape.rows, shape.take, shape.blocks) if isinstance(shape, Shape) else (shape.tokens, shape.kept)


def _head(shape: HeadShape, sampler: StepSampler) -> Compiled:
    words_of = head_words(shape)

    def head(forward: Forward, newest: Tensor, hidden: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        inputs = words_of.device(words)
        logits = forward.logits(hidden.index_select(0, inputs["kept"]))
        tokens, logprobs = sampler.choose(logits, None, inputs["kept"])
        newest.index_copy_(0, inputs["sampled"], tokens.clamp_min(0))
        return logits, torch.stack((tokens.int(), logprobs.float().view(torch.int32)), 1)

    return head
