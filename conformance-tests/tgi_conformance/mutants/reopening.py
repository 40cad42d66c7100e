"""Sessions that leave something behind when they close, and caches of another size than was asked for."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import ClassVar

from tgi_conformance.mutants.base import Mutant, Sound, add, opening
from tgi_core.backend import Capacity, Closed, WarmupPlan, hookimpl
from tgi_core.backend.callbacks import Progress


class FreesNothing(Sound):
    """Close returns and every cache stays: a captured graph or a registry holds them (seen on every vendor's runtime)."""

    held: ClassVar[list[list[int]]] = []

    @hookimpl
    def close(self) -> Closed:
        """Everything is forgotten but the cache."""
        self.held.append([*self._slots])
        return super().close()


class KeepsThread(Sound):
    """The thread that feeds the device's queue waits for work for ever."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Starts one."""
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return super().warmup(plan, progress)


class KeepsFile(Sound):
    """Each session opens the device's file, and none closes it."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Opens one."""
        os.open(os.devnull, os.O_RDONLY)
        return super().warmup(plan, progress)


class BlocksOfItsOwn(Sound):
    """As many blocks as were asked for, all of the device's own size: the cache has four times the tokens, or a quarter."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Blocks of 16."""
        return super().warmup(replace(plan, block_size=16), progress)


for _name, _kind, _killed_by in (
    ("close-frees-nothing", FreesNothing, "leaks.reopen"),
    ("close-keeps-thread", KeepsThread, "leaks.reopen"),
    ("close-keeps-file", KeepsFile, "leaks.reopen"),
    ("blocks-of-its-own", BlocksOfItsOwn, "open.promise"),
):
    add(Mutant(_name, _kind.__doc__ or "", opening(_kind), (_killed_by,)))
