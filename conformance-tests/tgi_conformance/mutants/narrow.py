"""Good twins that allow little: small limits, one session at a time, one dtype. No clause may hold anything against them."""

from __future__ import annotations

from typing import ClassVar

from tgi_conformance.mutants.base import Mutant, Sound, add, opening
from tgi_core.backend import Closed, DeviceBusy, OpenOptions, hookimpl


class Exclusive(Sound):
    """The device belongs to one session at a time: a second open is DeviceBusy."""

    held: ClassVar[list[Exclusive]] = []

    @hookimpl
    def close(self) -> Closed:
        """The device is free again."""
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
