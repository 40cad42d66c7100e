"""What an operator is: one way of being wrong, with the topics of the suite that are about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tgi_conformance.generated.inner import Model
from tgi_conformance.generated.witness import Witness


@dataclass(frozen=True, slots=True)
class Operator:
    """A kind of session that is wrong where its trigger fires: around any backend, or within the reference backend's model."""

    name: str
    kind: type[Witness] | type[Model]
    topics: frozenset[str]
    weight: float = 1.0
    """How often it is drawn, beside others."""

    @property
    def why(self) -> str:
        """Where such a defect comes from."""
        return (self.kind.__doc__ or "").strip()


_ALL: dict[str, Operator] = {}
_Kind = TypeVar("_Kind", bound=type[Witness] | type[Model])


def operator(name: str, topics: str, weight: float = 1.0) -> Callable[[_Kind], _Kind]:
    """Register a class; topics are words in one string."""

    def register(kind: _Kind) -> _Kind:
        if name in _ALL:
            raise ValueError(f"two operators are called {name}")
        _ALL[name] = Operator(name, kind, frozenset(topics.split()), weight)
        return kind

    return register


def registered() -> dict[str, Operator]:
    """All of them by name, in the order of their definition."""
    return dict(_ALL)
