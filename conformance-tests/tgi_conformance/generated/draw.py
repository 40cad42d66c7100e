"""From a seed and a number to a mutant."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tgi_conformance.generated import cache, choosing, results, verbs
from tgi_conformance.generated.conditions import Condition
from tgi_conformance.generated.conditions import drawn as drawn_condition
from tgi_conformance.generated.inner import Model
from tgi_conformance.generated.moment import Past
from tgi_conformance.generated.operators import Operator, registered
from tgi_conformance.generated.witness import Trigger, Witness
from tgi_conformance.golden import default_model
from tgi_conformance.mutants.base import Sound, opening
from tgi_conformance.subject import GENERATED
from tgi_conformance.target import Target
from tgi_core.backend import OpenOptions
from tgi_core.backend.session import Session

MODULES = (cache, choosing, results, verbs)
"""Where operators are."""


@dataclass(slots=True)
class Generated:
    """One mutant. `topics` are those whose clauses name its cause: the operator's and the condition's."""

    name: str
    operator: Operator
    choice: Any
    condition: Condition
    trigger: Trigger = field(init=False)

    def __post_init__(self) -> None:
        self.trigger = Trigger(self.condition, Past())

    @property
    def topics(self) -> frozenset[str]:
        """The published mapping from causes to topics."""
        return self.operator.topics | self.condition.topics

    @property
    def cause(self) -> str:
        """In words."""
        choice = (
            ""
            if self.choice is None
            else f" ({self.choice})"
            if not isinstance(self.choice, Exception)
            else f" ({self.choice!r})"
        )
        return f"{self.operator.name}{choice}: {self.condition.name}"

    def open(self, options: OpenOptions) -> object:
        """As a plugin's `backend_open`. Sessions share one past."""
        if self.trigger.past.counts.get("opening"):
            self.trigger.past.note("reopening")
        self.trigger.past.counts["opening"] = 1
        kind = self.operator.kind
        if issubclass(kind, Witness):
            return kind(Session(opening(Sound)(options), "toy"), self.trigger, self.choice)
        model = opening(kind)(options)
        assert isinstance(model, Model)
        model.choice = self.choice
        model.witness = Witness(Session(model, "toy"), self.trigger)
        return model.witness

    def target(self) -> Target:
        """It as the suite takes it."""
        return Target(self.name, self.open, Path(default_model("none")))


def drawn(seed: int, number: int) -> Generated:
    """The mutant of a seed and a number: always the same."""
    draw = Random(f"{seed}:{number}")
    operators = list(registered().values())
    (operator,) = draw.choices(operators, [item.weight for item in operators])
    return Generated(f"{GENERATED}{seed}:{number}", operator, draw.choice(operator.kind.choices), drawn_condition(draw))


def named(name: str) -> Generated:
    """By its name. Raises ValueError."""
    seed, _, number = name.removeprefix(GENERATED).partition(":")
    return drawn(int(seed), int(number))
