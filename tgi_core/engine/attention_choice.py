"""The fastest of the attention providers that can run a model on a device: timed once per machine, model shape and set of versions."""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from tgi_core.engine.attention.checking import kind_of
from tgi_core.engine.attention.provider import AttentionLayer, AttentionProvider
from tgi_core.engine.attention.timing import LOADS, Timed, Timer
from tgi_core.engine.comparison import Agree
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.device_queue import CannotCapture
from tgi_core.engine.selection import attempt
from tgi_core.kept_choices import cache_folder, choice_file, keep_choice, read_choice

MARGIN = 0.95
"""Another provider must take at most this part of the first one's time, so that noise does not displace it."""

Refusal = Callable[[AttentionProvider], str]
"""Why a provider cannot be used; empty if it can."""

_NO_CAPTURE = "its steps cannot be captured"

_log = logging.getLogger("tgi_core.engine")


@runtime_checkable
class TimesAttention(Protocol):
    """A device kit whose attention providers are timed."""

    def attention_timer(self) -> Timer | None:
        """Its clock; None if the order of the providers decides."""

    def attention_versions(self, providers: Sequence[AttentionProvider]) -> tuple[str, ...]:
        """Everything that these providers' times depend on besides the model: the device, its driver, versions of libraries."""


@dataclass(slots=True)
class Figures:
    """Nanoseconds of each provider by load, and why others have none. `lasting` says that a later start would find the same."""

    times: dict[str, list[int]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    lasting: bool = True

    @classmethod
    def read(cls, file: Path, names: Sequence[str]) -> Figures | None:
        """What an earlier start kept about these providers; None if it kept nothing, or nothing valid."""
        found = read_choice(file)
        times, reasons = found.get("times"), found.get("reasons")
        if not isinstance(times, dict) or not isinstance(reasons, dict) or {*times, *reasons} != set(names):
            return None
        if not all(map(_are_times, times.values())) or not all(isinstance(reason, str) for reason in reasons.values()):
            return None
        return cls(times, {name: reason[:300] for name, reason in reasons.items()})

    def agreed(self, names: Sequence[str], agree: Agree) -> Figures:
        """The same on all ranks: the slowest rank's times of the providers that every rank has timed."""
        common = Figures(reasons=dict(self.reasons), lasting=self.lasting)
        for name in names:
            own = self.times.get(name)
            if agree(int(own is not None)):
                common.times[name] = [-agree(-time) for time in own or ()]
            else:
                common.reasons.setdefault(name, "another rank cannot time it")
        return common

    def best(self) -> str:
        """The provider with the least time over all loads, as a geometric mean; the first unless another is clearly faster."""
        means = {name: math.exp(sum(map(math.log, times)) / len(times)) for name, times in self.times.items()}
        first, fastest = next(iter(means)), min(means, key=lambda name: means[name])
        return fastest if means[fastest] <= MARGIN * means[first] else first

    def told(self) -> str:
        """The figures for the log and `/info`."""
        texts = (f"{name} {' + '.join(f'{time / 1000:.0f}' for time in times)} µs" for name, times in self.times.items())
        return f"timed for {', '.join(load.name for load in LOADS)}: {', '.join(texts)}"


def fastest_attention(
    kit: DeviceKit,
    layers: Sequence[AttentionLayer],
    dtype: torch.dtype,
    choices: Sequence[AttentionProvider],
    refusal: Refusal,
    agree: Agree = int,
) -> tuple[AttentionProvider, list[str]]:
    """The provider to use, the same on all ranks, and what to say about it. `choices` are the first that can be used and those after it.

    Providers with the block sizes of the first are compared: larger blocks would share fewer prefixes, which no timing shows.
    """
    first = choices[0]
    if not isinstance(kit, TimesAttention):
        return first, []
    rivals = {each.name: each for each in choices if each.block_sizes == first.block_sizes}
    if not alike(list(rivals), agree):
        return first, ["not timed: ranks have different attention providers"]
    timer = kit.attention_timer()
    # what a step selects of its positions depends on its tokens
    if timer is None or len(rivals) < 2 or any(layer.parameters.selected is not None for layer in layers):
        return first, []
    cache_dtype = None if kit.kv_cache_dtype is None else kit.kv_cache_dtype.dtype
    key = (LOADS, kit.attention_versions(choices), [kind_of(layer) for layer in layers], dtype, cache_dtype)
    file = choice_file(cache_folder("attention"), "times", key)
    figures = Figures.read(file, list(rivals))
    kept = bool(agree(int(figures is not None)))
    if not kept or figures is None:
        _log.info("attention: timing %s, once per machine", ", ".join(rivals))
        figures = _timed(Timed(layers, dtype, cache_dtype, kit.device, timer), rivals, refusal)
    figures = figures.agreed(list(rivals), agree)
    if figures.lasting and not kept:
        keep_choice(file, {"times": figures.times, "reasons": figures.reasons})
    timed = [figures.told() + (", at an earlier start" if kept else "")] if len(figures.times) > 1 else []
    while figures.times:
        best = figures.best()
        reason = refusal(rivals[best]) if kept and best != first.name else ""
        if agree(int(not reason)):
            return rivals[best], [*_rejections(figures), *timed]
        figures.times.pop(best)
        figures.reasons[best] = reason or "another rank cannot"
    return first, _rejections(figures)


def _timed(timed: Timed, rivals: Mapping[str, AttentionProvider], refusal: Refusal) -> Figures:
    """Check the providers after the first, and time those that can be used. One that fails is out."""
    figures, first = Figures(), next(iter(rivals))

    def time(provider: AttentionProvider) -> str:
        try:
            figures.times[provider.name] = [max(1, round(1e9 * seconds)) for seconds in timed.seconds(provider)]
        except CannotCapture as reason:
            return f"{_NO_CAPTURE}: {reason}"
        return ""

    for name, provider in rivals.items():
        refused = "" if name == first else refusal(provider)
        reason = refused or attempt(partial(time, provider))
        if reason:
            figures.reasons[name] = reason
        if reason and not refused and not reason.startswith(_NO_CAPTURE):
            figures.lasting = False  # a device without memory, for instance, may have some at the next start
    return figures


def _rejections(figures: Figures) -> list[str]:
    return [f"not {name}: {reason}" for name, reason in figures.reasons.items()]


def alike(names: Sequence[str], agree: Agree) -> bool:
    """Whether all ranks have the same names."""
    own = zlib.crc32("\n".join(names).encode())
    return agree(own) == -agree(-own)


def _are_times(times: Any) -> bool:
    return isinstance(times, list) and len(times) == len(LOADS) and all(type(time) is int and time > 0 for time in times)
