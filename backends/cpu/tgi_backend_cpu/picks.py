"""The kernels that an earlier start found to be the fastest on this machine, and the libraries that a start needs. Does not import torch:
the process that starts a model builds libraries before it loads torch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tgi_backend_cpu.building import (
    BUILDING,
    CHOICE,
    USUAL_S,
    CannotBuild,
    Progress,
    Variant,
    cache_folder,
    candidates,
    library,
    source_hash,
)
from tgi_backend_cpu.limits import cpu_name
from tgi_core.kept_choices import choice_file, keep_choice, read_choice


@dataclass(frozen=True, slots=True)
class Pick:
    """A variant, whether its weights are compressed to twelve bits, and what was measured."""

    variant: str
    bf12: bool
    reason: str


def is_measured(environment: Mapping[str, str]) -> bool:
    """Whether kernels are picked by measuring, rather than by name."""
    return (environment.get(CHOICE, "").strip() or "auto") == "auto"


def pick_file(variants: Sequence[Variant]) -> Path:
    """The file of the pick among variants: each processor, version of the sources and set of variants has its own."""
    key = (cpu_name(), [(variant.name, source_hash(variant)) for variant in variants])
    return choice_file(cache_folder(), "pick", key)


def kept_pick(variants: Sequence[Variant]) -> Pick | None:
    """The pick of an earlier start, if there is a valid one among these variants."""
    found = read_choice(pick_file(variants))
    name, bf12, reason = found.get("variant"), found.get("bf12"), found.get("reason")
    if not (isinstance(name, str) and isinstance(bf12, bool) and isinstance(reason, str)):
        return None
    return Pick(name, bf12, reason[:300]) if name in {variant.name for variant in variants} else None


def keep_pick(variants: Sequence[Variant], pick: Pick) -> None:
    """Keep a pick for the next start, if the cache folder can be written."""
    keep_choice(pick_file(variants), asdict(pick))


def wanted(environment: Mapping[str, str]) -> tuple[Variant, ...]:
    """The variants that a start loads: the one picked earlier, or all candidates. Raises CannotBuild if there is none."""
    variants = candidates(environment)
    pick = kept_pick(variants) if is_measured(environment) else None
    return tuple(variant for variant in variants if pick is None or variant.name == pick.variant)


def build_ahead(environment: Mapping[str, str], progress: Progress) -> str:
    """Build the kernels that this process will use, if they are not built yet, and show progress: that takes up to a minute each, once
    per machine and version. Return why none can be built, "" if there is one."""
    start, shown, faults, usual = time.monotonic(), False, [], USUAL_S

    def waiting() -> None:
        nonlocal shown
        shown = True
        progress(BUILDING, min(int(time.monotonic() - start), usual - 1), usual, "s")

    try:
        variants = wanted(environment)
    except CannotBuild as error:
        return str(error)
    usual *= len(variants)
    for variant in variants:
        try:
            library(variant, waiting)
        except CannotBuild as error:
            faults.append(str(error))
    if len(faults) == len(variants):
        return faults[0]
    if shown:
        progress(BUILDING, usual, usual, "s")
    return ""
