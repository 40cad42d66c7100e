"""The choice of a process's native kernels: those requested, or those that are the fastest on this processor."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tgi_backend_cpu.building import CannotBuild, Variant, cache_folder, candidates
from tgi_backend_cpu.kernels import Kernels, load
from tgi_backend_cpu.measuring import fastest
from tgi_backend_cpu.picks import Pick, is_measured, keep_pick, kept_pick

INT8_ROWS = "TGI_CPU_INT8_ROWS"
"""Environment variable: 1 to round rows to eight bits when they are multiplied by weights of eight bits."""

_log = logging.getLogger("tgi_backend_cpu")


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice, for the log and `/info`: the variant or `torch`, and the reason. `bf12`: compress weights to twelve bits."""

    name: str
    reason: str
    bf12: bool = True


def open_kernels(threads: int, fault: str = "") -> tuple[Kernels | None, Choice]:
    """The kernels of this process; the choice is logged. `fault`: why there can be none, if that is known."""
    call, choice = (None, Choice("torch", fault)) if fault else choose(os.environ, threads)
    _log.info("kernels: %s (%s)", choice.name, choice.reason)
    if call is None:
        return None, choice
    return Kernels(call, threads, choice.bf12, os.environ.get(INT8_ROWS, "").strip() == "1"), choice


def choose(environment: Mapping[str, str], threads: int) -> tuple[ctypes.CDLL | None, Choice]:
    """The requested variant, else the fastest that the processor supports and that can be loaded; None means torch's own operators."""
    try:
        variants = candidates(environment)
        if is_measured(environment):
            return _picked(variants, threads)
        loaded, origin = load(variants[0])
    except CannotBuild as error:
        return None, Choice("torch", str(error))
    return loaded, Choice(variants[0].name, f"asked for, {origin}")


def _picked(variants: Sequence[Variant], threads: int) -> tuple[ctypes.CDLL, Choice]:
    """The fastest variant: measured at the first start, by one process at a time. Raises CannotBuild if none can be loaded."""
    found = _load_kept(variants)
    if found is None:
        with _turn():
            found = _load_kept(variants)  # another process may have measured in the meantime
            if found is None:
                pick = _measure(variants, threads)
                keep_pick(variants, pick)
                found = _load_pick(variants, pick, "")
    return found


def _load_kept(variants: Sequence[Variant]) -> tuple[ctypes.CDLL, Choice] | None:
    pick = kept_pick(variants)
    if pick is None:
        return None
    try:
        return _load_pick(variants, pick, ", at an earlier start")
    except CannotBuild:
        return None


def _load_pick(variants: Sequence[Variant], pick: Pick, when: str) -> tuple[ctypes.CDLL, Choice]:
    (variant,) = (variant for variant in variants if variant.name == pick.variant)
    loaded, origin = load(variant)
    return loaded, Choice(variant.name, f"{pick.reason}{when}; {origin}", pick.bf12)


def _measure(variants: Sequence[Variant], threads: int) -> Pick:
    opened, faults = {}, []
    for variant in variants:
        try:
            opened[variant.name] = Kernels(load(variant)[0], threads)
        except CannotBuild as error:
            _log.warning("kernels: %s", error)
            faults.append(error)
    if not opened:
        raise faults[0]
    _log.info("kernels: measuring %s, once per machine", ", ".join(opened))
    default = next((v.name for v in variants if v.is_default and v.name in opened), next(iter(opened)))
    return fastest(opened, default)


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """One process at a time: several would slow each other down while measuring, and the ranks of a model must not differ."""
    with contextlib.ExitStack() as stack:
        try:
            cache_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = stack.enter_context((cache_folder() / "measuring.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            pass  # no writable folder: this process measures for itself
        yield
