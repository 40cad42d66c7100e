"""Correct twins that allow little: small limits, one session at a time, one dtype. No clause may fail them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar
from unittest.mock import patch

from tgi_conformance.mutants.base import Mutant, Sound, add, mutant, opening
from tgi_core.backend import (
    Capabilities,
    Capacity,
    Closed,
    DeviceBusy,
    Feature,
    OpenOptions,
    Progress,
    Unsupported,
    WarmupPlan,
    hookimpl,
    reference,
)
from tgi_core.backend.batch_tracker import LaunchedStep
from tgi_core.backend.reference import toy_logits


class SmallLimits(Sound):
    """Promises less than it was asked for, and keeps that promise."""

    def limits(self, promised: Capacity) -> Capacity:
        """Return the limits to promise and enforce."""
        return promised

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Promise and enforce smaller limits."""
        promised = self.limits(super().warmup(plan, progress))
        self.tracker._capacity = promised
        return promised


def _small(name: str, origin: str, limits: Callable[[Capacity], Capacity]) -> None:
    kind = type(name, (SmallLimits,), {"__doc__": origin, "limits": staticmethod(limits)})
    mutant(name)(kind)


for _count, _name in ((1, "one"), (2, "two")):
    _small(
        f"{_name}-prefill-row{'s' * (_count > 1)}",
        f"A static device: at most {_count} row(s) of a step may take more than one token.",
        lambda promised, count=_count: replace(promised, max_prefill_rows=count),  # type: ignore[misc]
    )
for _count, _name in ((1, "one"), (2, "two"), (3, "three"), (4, "four")):
    _small(
        f"{_name}-row{'s' * (_count > 1)}",
        f"A small device: at most {_count} row(s) may be alive.",
        lambda promised, count=_count: replace(promised, max_rows=count, max_prefill_rows=count),  # type: ignore[misc]
    )
_small(
    "step-of-one-row",
    "A step is only as large as the longest row.",
    lambda promised: replace(promised, max_step_tokens=promised.max_row_tokens),
)


class Exclusive(Sound):
    """The device belongs to one session at a time: opening a second one raises DeviceBusy."""

    held: ClassVar[list[Exclusive]] = []

    @hookimpl
    def close(self) -> Closed:
        """Free the device."""
        if self in self.held:
            self.held.remove(self)
        return super().close()


def _exclusively(options: OpenOptions) -> object:
    if Exclusive.held:
        raise DeviceBusy("another session holds the device")
    session = opening(Exclusive)(options)
    assert isinstance(session, Exclusive)
    Exclusive.held.append(session)
    return session


add(Mutant("one-session", (Exclusive.__doc__ or ""), _exclusively))


class Halves(Sound):
    """Opens in bfloat16 only, following the published formula; last bits depend on how many rows run and how a prompt is cut."""

    _shape = 0

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Return the capabilities without batch invariance."""
        found = super().capabilities()
        return replace(found, features=found.features - {Feature.BATCH_INVARIANT})

    def _compute(self, launch: LaunchedStep) -> None:
        self._shape = 7 * len(launch.row_inputs) + sum(row_input.take for row_input in launch.row_inputs)
        with patch.object(reference, "toy_logits", self._logits):
            super()._compute(launch)

    def _logits(self, state: int, vocab_size: int, others: Sequence[int] = ()) -> dict[int, float]:
        """Return logits in bfloat16, one unit in the last place up or down, depending on the shape of the step."""
        exact = toy_logits(state, vocab_size, others)
        return {token: _rounded(value, (token + self._shape) % 3 - 1) for token, value in exact.items()}


def _rounded(value: float, units: int) -> float:
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return float(struct.unpack("<f", struct.pack("<I", ((bits >> 16) + units) << 16))[0])


def _in_halves(options: OpenOptions) -> object:
    if options.dtype != "bfloat16":
        raise Unsupported(f"dtype {options.dtype}: this device computes in bfloat16")
    return opening(Halves)(options)


add(Mutant("bfloat16-only", (Halves.__doc__ or ""), _in_halves, dtype="bfloat16"))


@mutant("one-block-size")
class OneBlockSize(Sound):
    """A device whose kernels only support blocks of 16 tokens."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Declare one block size."""
        return replace(super().capabilities(), block_sizes=(16,))
