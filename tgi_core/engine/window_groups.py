"""Which models keep layers with a window in a cache group of their own, whose blocks are taken back behind each row.

Those on devices in lock step, whose runners read the block tables of a row in each step. Steps that are enqueued ahead or run as fixed
programs have one table per row on the device: there, all layers are in one group of all positions.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tgi_core.engine.device import DeviceKit
from tgi_core.engine.runner import Runner


@runtime_checkable
class SeparatesWindows(Protocol):
    """A runner that can have such a group."""

    def separate_windows(self) -> None:
        """Have one from the next `reserve` on, where it saves memory. Call it once it is known whether another cache has the same
        blocks."""


def separate_windows(runner: Runner, kit: DeviceKit) -> None:
    """Let a runner have a window group if its device allows it."""
    if kit.queue() is None and isinstance(runner, SeparatesWindows):
        runner.separate_windows()
