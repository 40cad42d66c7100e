"""Draw a mutant from a seed and a number."""

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
"""Modules that define operators."""


@dataclass(slots=True)
class Generated:
    """A generated mutant. `topics` are those whose clauses name its cause, from both operator and condition."""

    name: str
    operator: Operator
    choice: Any
    condition: Condition
    triggers: list[Trigger] = field(default_factory=list)
    """One per session. Sessions do not share counts, except for how many were opened before."""

    @property
    def fired(self) -> int:
        """How often it was wrong, in all sessions."""
        return sum(trigger.fired for trigger in self.triggers)

    @property
    def topics(self) -> frozenset[str]:
        """The topics that cover the operator or the condition."""
        return self.operator.topics | self.condition.topics

    @property
    def cause(self) -> str:
        """The operator and condition in words."""
        choice = repr(self.choice) if isinstance(self.choice, Exception) else self.choice
        return f"{self.operator.name}{'' if choice is None else f' ({choice})'}: {self.condition.name}"

    def open(self, options: OpenOptions) -> object:
        """Open a session, like a plugin's `backend_open`."""
        trigger = Trigger(self.condition, Past({"reopening": len(self.triggers)}, "reopening" if self.triggers else ""))
        self.triggers.append(trigger)
        kind = self.operator.kind
        if issubclass(kind, Witness):
            return kind(Session(opening(Sound)(options), "toy"), trigger, self.choice)
        model = opening(kind)(options)
        assert isinstance(model, Model)
        model.choice = self.choice
        model.witness = Witness(Session(model, "toy"), trigger)
        return model.witness

    def target(self) -> Target:
        """Return the mutant as a target of the suite."""
        return Target(self.name, self.open, Path(default_model("none")))


def drawn(seed: int, number: int) -> Generated:
    """Return the mutant for a seed and a number, which is always the same."""
    draw = Random(f"{seed}:{number}")
    operators = list(registered().values())
    (operator,) = draw.choices(operators, [item.weight for item in operators])
    return Generated(f"{GENERATED}{seed}:{number}", operator, draw.choice(operator.kind.choices), drawn_condition(draw))


def named(name: str) -> Generated:
    """Return the mutant with this name. Raises ValueError."""
    seed, _, number = name.removeprefix(GENERATED).partition(":")
    return drawn(int(seed), int(number))
