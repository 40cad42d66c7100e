"""Choosing the first implementation that supports what is needed, and recording why those before it do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar


class Named(Protocol):
    """An implementation that logs and `/info` can name."""

    name: str


_Choice = TypeVar("_Choice", bound=Named)


def first_supported(choices: Iterable[_Choice], refusal: Callable[[_Choice], str]) -> tuple[_Choice | None, list[str]]:
    """The first choice for which `refusal` is empty, and "not NAME: REASON" for each one before it; None if all are refused."""
    rejected: list[str] = []
    for choice in choices:
        reason = refusal(choice)
        if not reason:
            return choice, rejected
        rejected.append(f"not {choice.name}: {reason}")
    return None, rejected
