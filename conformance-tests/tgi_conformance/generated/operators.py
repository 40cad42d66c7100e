"""Operators: ways to be wrong, with the topics of the suite that cover them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tgi_conformance.generated.inner import Model
from tgi_conformance.generated.witness import Witness


@dataclass(frozen=True, slots=True)
class Operator:
    """A session that is wrong when its trigger fires, wrapped around any backend or inside the reference backend's model."""

    name: str
    kind: type[Witness] | type[Model]
    topics: frozenset[str]
    weight: float = 1.0
    """How often it is drawn, relative to others."""

    @property
    def why(self) -> str:
        """How such a defect arises."""
        return (self.kind.__doc__ or "").strip()


_ALL: dict[str, Operator] = {}
_Kind = TypeVar("_Kind", bound=type[Witness] | type[Model])


def operator(name: str, topics: str, weight: float = 1.0) -> Callable[[_Kind], _Kind]:
    """Register a class as an operator; topics are words in one string."""

    def register(kind: _Kind) -> _Kind:
        if name in _ALL:
            raise ValueError(f"two operators have the name {name}")
        _ALL[name] = Operator(name, kind, frozenset(topics.split()), weight)
        return kind

    return register


def registered() -> dict[str, Operator]:
    """Return all operators by name, in the order of their definition."""
    return dict(_ALL)
