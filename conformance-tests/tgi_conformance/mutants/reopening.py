"""Sessions that leave something behind when they close, and caches of another size than requested."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import ClassVar

from tgi_conformance.mutants.base import Mutant, Sound, add, opening
from tgi_core.backend import Capacity, Closed, WarmupPlan, hookimpl
from tgi_core.backend.callbacks import Progress


class FreesNothing(Sound):
    """Close returns but every cache stays: a captured graph or a registry holds it (seen on every vendor's runtime)."""

    held: ClassVar[list[list[int]]] = []

    @hookimpl
    def close(self) -> Closed:
        """Drop everything but the cache."""
        self.held.append([*self._slots])
        return super().close()


class KeepsThread(Sound):
    """The thread that feeds the device's queue waits for work forever."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Start a thread."""
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return super().warmup(plan, progress)


class KeepsFile(Sound):
    """Each session opens the device's file and never closes it."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Open the file."""
        os.open(os.devnull, os.O_RDONLY)
        return super().warmup(plan, progress)


class BlocksOfItsOwn(Sound):
    """As many blocks as requested, but all of the device's own size: the cache has four times the tokens, or a quarter."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Use blocks of 16."""
        return super().warmup(replace(plan, block_size=16), progress)


for _name, _kind, _killed_by in (
    ("close-frees-nothing", FreesNothing, "leaks.reopen"),
    ("close-keeps-thread", KeepsThread, "leaks.reopen"),
    ("close-keeps-file", KeepsFile, "leaks.reopen"),
    ("blocks-of-its-own", BlocksOfItsOwn, "open.promise"),
):
    add(Mutant(_name, _kind.__doc__ or "", opening(_kind), (_killed_by,)))
